// Finds the controls of processes (docs/control.md), and makes requests of them.
#pragma once

#include <string>

#include "socket_client.h"

namespace stagehand::cli {

// What a control has answered.
struct ControlAnswer {
    int status = 0;    // of HTTP
    std::string body;  // JSON
};

// Finds the socket of a control: by a process id, by its path, or, for an empty text, the only one of the user.
// `device` chooses among the devices of a process and may be empty. Throws CommandError if there is no such control, or
// if there are several.
std::string find_control(const std::string& process, const std::string& device);

// Sends a request with a body, and waits for the answer: a pause may take long. With a token if it is not empty. Throws
// CommandError if nobody answers. Returns Answer::given or Answer::interrupted.
Answer ask_control(const std::string& path, const std::string& target, const std::string& body,
                   const std::string& token, ControlAnswer& out);

}  // namespace stagehand::cli
