// Finds the processes that answer questions about themselves, and asks them.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "socket_client.h"

namespace stagehand::cli {

// A process with a socket at which it may answer.
struct MonitoredProcess {
    std::string path;
    pid_t pid = 0;        // 0: not known
    std::string program;  // may be empty

    // Text for messages: "process 123 (python3)", or the path.
    std::string description() const;
    // Whether the process lives. False also for a process that has ended but whose parent has not waited for it.
    bool lives() const;
};

// Finds the process for a process id or the path of a socket; for an empty text, the only process that answers. Throws
// CommandError if there is no such process, if several processes answer, or if the process does not answer.
MonitoredProcess find_process(const std::string& wanted);

// Asks once. On `given` the answer is in `text`. Records in `process` which process answers. Throws CommandError if
// asking is not allowed, or if the answering process belongs to another user.
Answer ask(MonitoredProcess& process, std::string& text);

}  // namespace stagehand::cli
