// Finds the processes that answer questions about themselves, and asks them.
#pragma once

#include <string>

#include "process_sockets.h"
#include "socket_client.h"

namespace stagehand::cli {

// As find_socket().
ProcessSocket find_monitor(const std::string& wanted);

// Asks once. On `given` the answer is in `text`. Records in `process` which process answers. Throws CommandError if
// asking is not allowed, or if the answering process belongs to another user.
Answer ask_monitor(ProcessSocket& process, std::string& text);

}  // namespace stagehand::cli
