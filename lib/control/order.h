// What a request asks for: the paths that exist, and the reading of queries and bodies. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "control/http.h"

namespace stagehand::control {

enum class Endpoint { release, resume, memory, metrics, sleep, wake_up, is_sleeping, snapshot };

struct Route {
    std::string_view path;
    Endpoint endpoint;
    const char* methods;  // "GET, POST"

    bool takes(std::string_view method) const;
    bool changes() const;
};

// Returns NULL if there is no such path. A query is no part of the path, and neither are a scheme and a host before it.
const Route* find_route(std::string_view target);

// A release or a resume.
struct Order {
    bool resumes = false;
    std::vector<std::string> tags;  // none: all
    uint32_t contents = 0;          // SH_CONTENTS_*, of a release
    bool if_needed = false;         // tags that are in the wanted state already are left out
    double wait_seconds = 5;        // for other calls that stand in the way
};

// Reads a request. It is empty for a route that changes nothing. Fails with SH_ERROR_INVALID_ARGUMENT and the wrong
// value in the text.
Status read_order(const Route& route, const Request& request, Order* out);

}  // namespace stagehand::control
