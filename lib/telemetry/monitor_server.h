// MonitorServer: the thread of the monitor. It answers clients of a listening socket, a few at a time, each within a
// time limit.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "platform/descriptor.h"

namespace stagehand::telemetry {

// A client sends one line and gets one line. Then the server closes the connection.
class MonitorServer {
public:
    struct Limits {
        size_t clients = 8;                        // at once; other clients wait in the queue of the socket
        size_t request_bytes = 64;                 // of a request with its newline
        std::chrono::milliseconds patience{2000};  // from the connection to the last byte of the answer
    };

    // Answers on `listening`, a non-blocking socket that has to stay open. `answer` is called on the server's thread,
    // and may throw.
    static Status start(const platform::Descriptor& listening, std::function<std::string()> answer,
                        const Limits& limits, std::unique_ptr<MonitorServer>* out);
    // Closes the connections of all clients, answered or not, shuts the socket down, and waits for the thread.
    ~MonitorServer();
    MonitorServer(const MonitorServer&) = delete;
    MonitorServer& operator=(const MonitorServer&) = delete;

    static constexpr const char* kRequest = "snapshot";

private:
    using Clock = std::chrono::steady_clock;
    struct Client {
        platform::Descriptor descriptor;
        Clock::time_point until;
        std::string request;
        std::string answer;  // not empty if the request was read
        size_t sent = 0;
    };

    MonitorServer(const platform::Descriptor& listening, std::function<std::string()> answer, const Limits& limits);
    void run();
    int milliseconds_to_wait(Clock::time_point now) const;
    void take_clients(Clock::time_point now);
    bool serve(Client& client);
    bool read_request(Client& client);
    static void let_go(Client& client);

    const platform::Descriptor& listening_;
    const std::function<std::string()> answer_;
    const Limits limits_;
    std::atomic<bool> stopping_{false};
    std::vector<Client> clients_;  // used by the thread only, like the members below
    std::vector<pollfd> polled_;
    Clock::time_point accept_from_;  // the time of the next accept after the process ran out of descriptors
    std::thread thread_;
};

}  // namespace stagehand::telemetry
