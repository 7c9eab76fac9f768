// Processes that answer questions about themselves: finding them, and asking.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

namespace stagehand::cli {

// A process with a socket at which it may answer.
struct MonitoredProcess {
    std::string path;
    pid_t pid = 0;        // 0: not known
    std::string program;  // may be empty

    // "process 123 (python3)", or the path.
    std::string description() const;
    // False also for one that has ended and was not waited for.
    bool lives() const;
};

// Which process is meant by a process id, the path of a socket, or nothing: the only one there is. Throws
// CommandError: there is none, there are several, or it does not answer.
MonitoredProcess find_process(const std::string& wanted);

enum class Answer {
    given,
    none,         // it takes connections, but does not answer in time
    let_go,       // it ended the connection without an answer
    gone,         // nobody listens there
    interrupted,  // by a signal, see interrupt.h
};

// Asks once. On `given` the answer is in `text`. Notes who answers in `process`. Throws CommandError if asking is
// not allowed, or if what answers belongs to somebody else.
Answer ask(MonitoredProcess& process, std::string& text);

}  // namespace stagehand::cli
