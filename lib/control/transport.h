// The border between the library and its plugin for HTTP. The plugin reads requests from sockets and writes answers,
// and decides nothing. The library starts the threads, and says what each request gets. Only C types cross the border,
// and no exception does.
#pragma once

#include <cstddef>
#include <cstdint>

#include <stagehand/base.h>

namespace stagehand::control {

// Grows with each change of this file. A plugin of another version is refused.
constexpr uint32_t kTransportVersion = 1;
constexpr const char* kTransportEntry = "stagehand_control_transport";
constexpr const char* kTransportFile = "libstagehand-control.so";

struct TransportText {
    const char* data;
    size_t bytes;
};

struct TransportRequest {
    TransportText method, target, authorization, body;
};

// The texts are copied during the call that hands the answer over.
struct TransportAnswer {
    unsigned status;
    const char* content_type;
    const char* allow;  // may be NULL
    TransportText body;
};

// Returns false if no memory was left to copy the answer.
using TransportGive = bool (*)(void* sink, const TransportAnswer* answer);

// Which thread answers a request.
enum TransportLane : int32_t { kAnswered = -1, kReads = 0, kChanges = 1, kLanes = 2 };

struct TransportLimits {
    size_t connections;       // at once
    size_t header_bytes;      // of a request
    size_t body_bytes;        // of a request
    uint32_t patience_ms;     // for a whole request, and for a whole answer
    uint32_t same_user_only;  // on a Unix socket: other users get no answer
    int listening;            // a non-blocking socket, which stays the library's
};

// What the library gives the plugin. No function throws.
struct TransportHandler {
    void* user;
    // Is asked on the thread of serve() when a request's header has come, before its body is read. Says which lane
    // answers the request. kAnswered: an answer was given already, and the body is not read.
    int32_t (*admit)(void* user, const TransportRequest* request, void* sink, TransportGive give);
    // Answers a whole request, on a thread of work().
    void (*answer)(void* user, const TransportRequest* request, void* sink, TransportGive give);
    TransportLimits limits;
};

// What the plugin gives the library.
struct Transport {
    uint32_t version;
    sh_status (*open)(const TransportHandler* handler, void** out_server);
    // Serves connections until stop(). Called by one thread.
    void (*serve)(void* server);
    // Answers the requests of a lane until stop(). Called by any number of threads.
    void (*work)(void* server, int32_t lane);
    // Makes serve() and work() return. Requests that are being answered are answered to the end, but nobody gets the
    // answer.
    void (*stop)(void* server);
    // Called when all threads have returned.
    void (*close)(void* server);
};

using TransportEntry = const Transport* (*)(uint32_t version);

}  // namespace stagehand::control
