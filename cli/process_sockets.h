// The sockets at which processes answer, in the folders where the library puts them.
#pragma once

#include <string>
#include <string_view>

#include <sys/types.h>

namespace stagehand::cli {

// A socket at which a process may answer.
struct ProcessSocket {
    std::string path;
    pid_t pid = 0;             // 0: not known
    std::string program = {};  // may be empty
    std::string device = {};   // for which it answers; empty: for all of the process, or not known

    // Text for messages: "process 123 (python3)", or the path.
    std::string description() const;
    // Whether the process lives. False also for a process that has ended but whose parent has not waited for it.
    bool lives() const;
};

// What answers at a socket. The name of the file is "<process id><ending>", or "<process id>.<device><ending>".
struct SocketKind {
    std::string_view ending;
    bool of_device;
    const char* plural;         // "controls"
    const char* how_to_choose;  // among several
    const char* how_to_start;
};

// Finds the socket for a process id or its path; for an empty text, the only one at which a process of this user
// answers. `device` chooses among the devices of a process and may be empty. Throws CommandError if there is no such
// socket, or if there are several.
ProcessSocket find_socket(const SocketKind& kind, const std::string& wanted, const std::string& device = {});

// The name of a process's program. May be empty.
std::string program_of(pid_t process);

}  // namespace stagehand::cli
