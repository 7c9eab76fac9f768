// The sockets of processes in the folders where the library puts them.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace stagehand::cli {

bool is_number(std::string_view text);

// The folders in which processes of a user have their sockets by default.
std::vector<std::string> default_folders(uid_t user);

bool is_socket(const std::string& path);

// The paths of the sockets of a folder whose names are wanted, in order.
std::vector<std::string> sockets_in(const std::string& folder,
                                    const std::function<bool(std::string_view)>& is_wanted_name);

// The folders of the user of the command, and of the user of a process. Throws CommandError if there is no such
// process.
std::vector<std::string> folders_for_process(pid_t process);

// Whether the process lives. False also for a process that has ended but whose parent has not waited for it.
bool is_alive(pid_t process);

// The name of a process's program. May be empty.
std::string program_of(pid_t process);

}  // namespace stagehand::cli
