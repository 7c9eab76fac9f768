// The requests and answers of the control, as the library's own code sees them.
#pragma once

#include <string>
#include <string_view>

namespace stagehand::control {

// What a client asks. The texts live as long as the call that gets them.
struct Request {
    std::string_view method;         // "GET"
    std::string_view target;         // "/sleep?level=1"
    std::string_view authorization;  // the value of the header; empty if there is none
    std::string_view body;
};

struct Answer {
    unsigned status = 200;
    std::string body;
    const char* content_type = "application/json";
    const char* allow = nullptr;  // the methods that the path takes, with status 405
};

}  // namespace stagehand::control
