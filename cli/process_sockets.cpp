#include "process_sockets.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>

#include <dirent.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exit_code.h"

namespace stagehand::cli {

bool is_number(std::string_view text) {
    return !text.empty() && text.size() <= 9 &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The folders in which processes of a user have their sockets by default.
std::vector<std::string> default_folders(uid_t user) {
    std::vector<std::string> folders;
    const auto add = [&](std::string folder) {
        if (std::find(folders.begin(), folders.end(), folder) == folders.end()) folders.push_back(std::move(folder));
    };
    const char* runtime_folder = std::getenv("XDG_RUNTIME_DIR");
    if (runtime_folder != nullptr && *runtime_folder == '/') add(std::string(runtime_folder) + "/stagehand");
    add(fmt::format("/run/user/{}/stagehand", user));
    add(fmt::format("/tmp/stagehand-{}", user));
    return folders;
}

bool is_socket(const std::string& path) {
    struct stat found = {};
    return lstat(path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode);
}

std::vector<std::string> sockets_in(const std::string& folder,
                                    const std::function<bool(std::string_view)>& is_wanted_name) {
    std::vector<std::string> paths;
    DIR* const directory = opendir(folder.c_str());
    if (directory == nullptr) return paths;
    while (const dirent* entry = readdir(directory))
        if (is_wanted_name(entry->d_name) && is_socket(folder + "/" + entry->d_name))
            paths.push_back(folder + "/" + entry->d_name);
    closedir(directory);
    std::sort(paths.begin(), paths.end());
    return paths;
}

std::vector<std::string> folders_for_process(pid_t process) {
    struct stat owner = {};
    if (!is_alive(process) || stat(fmt::format("/proc/{}", process).c_str(), &owner) != 0)
        throw CommandError(ExitCode::device, fmt::format("there is no process {}", process));
    std::vector<std::string> folders = default_folders(geteuid());
    for (std::string& folder : default_folders(owner.st_uid))
        if (std::find(folders.begin(), folders.end(), folder) == folders.end()) folders.push_back(std::move(folder));
    return folders;
}

bool is_alive(pid_t process) {
    if (process <= 0 || (kill(process, 0) != 0 && errno == ESRCH)) return false;
    // The state follows the name, which is in brackets and may hold any characters.
    std::ifstream file(fmt::format("/proc/{}/stat", process));
    std::string line;
    std::getline(file, line);
    const auto name_end = line.rfind(") ");
    return name_end == std::string::npos || line.compare(name_end + 2, 1, "Z") != 0;
}

std::string program_of(pid_t process) {
    std::ifstream file(fmt::format("/proc/{}/comm", process));
    std::string name;
    std::getline(file, name);
    return name;
}

}  // namespace stagehand::cli
