#include "process_sockets.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exit_code.h"
#include "model/text.h"
#include "socket_client.h"

namespace stagehand::cli {

namespace {

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

bool is_alive(pid_t process) {
    if (process <= 0 || (kill(process, 0) != 0 && errno == ESRCH)) return false;
    // The state follows the name, which is in brackets and may hold any characters.
    std::ifstream file(fmt::format("/proc/{}/stat", process));
    std::string line;
    std::getline(file, line);
    const auto name_end = line.rfind(") ");
    return name_end == std::string::npos || line.compare(name_end + 2, 1, "Z") != 0;
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

// The sockets of a kind in a folder, in the order of their paths.
std::vector<ProcessSocket> sockets_in(const std::string& folder, const SocketKind& kind) {
    std::vector<ProcessSocket> sockets;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(
             folder, std::filesystem::directory_options::skip_permission_denied, ignored)) {
        const std::string name = entry.path().filename().string();
        if (!name.ends_with(kind.ending) || !is_socket(entry.path().string())) continue;
        const std::string rest = name.substr(0, name.size() - kind.ending.size());
        const std::size_t dot = rest.find('.');
        if (!is_number(rest.substr(0, dot)) || kind.of_device != (dot != std::string::npos)) continue;
        sockets.push_back({entry.path().string(), std::stoi(rest), "", kind.of_device ? rest.substr(dot + 1) : ""});
    }
    std::sort(sockets.begin(), sockets.end(),
              [](const ProcessSocket& a, const ProcessSocket& b) { return a.path < b.path; });
    return sockets;
}

// Whether a process listens on the socket and may be asked.
bool answers(ProcessSocket& socket) {
    try {
        SocketClient client(socket.path);
        if (client.connect(SocketClient::Clock::now()) != Answer::given) return false;
        socket.pid = client.check_peer();
        return true;
    } catch (const CommandError&) {
        return false;
    }
}

}  // namespace

std::string ProcessSocket::description() const {
    if (pid == 0) return model::printable(path, 200);
    return program.empty() ? fmt::format("process {}", pid)
                           : fmt::format("process {} ({})", pid, model::printable(program, 40));
}

bool ProcessSocket::lives() const { return is_alive(pid); }

ProcessSocket find_socket(const SocketKind& kind, const std::string& wanted, const std::string& device) {
    const bool any = wanted.empty();
    if (!any && !is_number(wanted)) {
        struct stat found = {};
        if (!is_socket(wanted))
            refuse(wanted,
                   stat(wanted.c_str(), &found) == 0 ? "is neither a process id nor a socket" : std::strerror(errno));
        return {wanted};
    }
    const pid_t process = any ? 0 : static_cast<pid_t>(std::stol(wanted));
    const std::vector<std::string> folders = any ? default_folders(geteuid()) : folders_for_process(process);
    std::vector<ProcessSocket> found;
    for (const std::string& folder : folders)
        for (ProcessSocket& socket : sockets_in(folder, kind))
            if ((device.empty() || socket.device == device) && (any ? answers(socket) : socket.pid == process)) {
                socket.program = program_of(socket.pid);
                found.push_back(std::move(socket));
            }
    if (found.empty())
        throw CommandError(ExitCode::device,
                           fmt::format("{}{}: there is no socket of it in {}; {}",
                                       any ? "no process answers" : fmt::format("process {} does not answer", process),
                                       device.empty() ? "" : fmt::format(" for device {}", model::in_quotes(device)),
                                       fmt::join(folders, " or "), kind.how_to_start));
    if (found.size() > 1) {
        std::vector<std::string> names;
        for (const ProcessSocket& socket : found)
            names.push_back((kind.of_device ? socket.device + " in " : "") + socket.description());
        throw CommandError(ExitCode::usage, fmt::format("{} {} answer: {}; {}", found.size(), kind.plural,
                                                        fmt::join(names, ", "), kind.how_to_choose));
    }
    return found.front();
}

std::string program_of(pid_t process) {
    std::ifstream file(fmt::format("/proc/{}/comm", process));
    std::string name;
    std::getline(file, name);
    return name;
}

}  // namespace stagehand::cli
