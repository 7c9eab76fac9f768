// Asks the controls of processes.
#pragma once

#include <string>

#include "process_sockets.h"
#include "socket_client.h"

namespace stagehand::cli {

// Finds the control without a device of a process (docs/telemetry.md), as find_socket() does.
ProcessSocket find_process(const std::string& wanted);

// Asks once for the snapshot. On `given` it is in `text`. Records in `process` which process answers. Throws
// CommandError if asking is not allowed, or if the answering process belongs to another user.
Answer ask_for_snapshot(ProcessSocket& process, std::string& text);

// What a control (docs/control.md) has answered.
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
