#include "monitor_client.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>
#include <system_error>

#include <dirent.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "exit_code.h"
#include "interrupt.h"
#include "model/text.h"

namespace stagehand::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto patience = std::chrono::seconds(3);
// Enough for about ten thousand runtimes.
constexpr std::size_t longest_answer = std::size_t{16} << 20;
constexpr std::string_view request = "snapshot\n";
constexpr std::string_view ending = ".sock";

// A descriptor that the destructor closes.
class Connection {
public:
    Connection() : descriptor_(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
        if (descriptor_ < 0) {
            throw CommandError(ExitCode::device, fmt::format("no socket: {}", std::strerror(errno)));
        }
    }
    ~Connection() { close(descriptor_); }
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    int descriptor() const { return descriptor_; }

private:
    int descriptor_;
};

bool is_number(std::string_view text) {
    return !text.empty() && text.size() <= 9 &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Waits until the connection is ready. Returns false if the time is up or a signal came.
bool wait_for(int descriptor, short events, Clock::time_point until) {
    while (interrupted() == 0) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
        if (left <= 0) {
            return false;
        }
        pollfd polled = {descriptor, events, 0};
        // Waits in short slices, because a signal may come just before the wait.
        if (poll(&polled, 1, static_cast<int>(std::min<long>(left, 100))) > 0) {
            return true;
        }
    }
    return false;
}

Answer not_in_time() { return interrupted() != 0 ? Answer::interrupted : Answer::none; }

[[noreturn]] void refuse(const std::string& path, std::string_view why) {
    throw CommandError(ExitCode::device, fmt::format("{}: {}", model::printable(path, 200), why));
}

Answer connect_to(const Connection& connection, const std::string& path, Clock::time_point until) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) {
        refuse(path, "is longer than a socket's path can be");
    }
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    while (connect(connection.descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        if (errno == ENOENT || errno == ECONNREFUSED || errno == ENOTDIR) {
            return Answer::gone;
        }
        if (errno != EAGAIN && errno != EINTR) {
            refuse(path, std::strerror(errno));
        }
        // The socket's queue is full.
        if (interrupted() != 0 || Clock::now() >= until) {
            return not_in_time();
        }
        poll(nullptr, 0, 10);
    }
    return Answer::given;
}

// Checks the owner of the socket, because in a folder that every user can write to, the file may be any user's.
void check_peer(const Connection& connection, MonitoredProcess& process) {
    ucred peer = {};
    socklen_t size = sizeof peer;
    if (getsockopt(connection.descriptor(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        refuse(process.path, std::strerror(errno));
    }
    if (geteuid() != 0 && peer.uid != geteuid() && peer.uid != 0) {
        refuse(process.path, fmt::format("belongs to user {}", peer.uid));
    }
    process.pid = peer.pid;
    std::ifstream name(fmt::format("/proc/{}/comm", peer.pid));
    std::getline(name, process.program);
}

Answer send_request(const Connection& connection, Clock::time_point until) {
    std::size_t sent = 0;
    while (sent < request.size()) {
        const ssize_t part = send(connection.descriptor(), request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
        if (part >= 0) {
            sent += static_cast<std::size_t>(part);
        } else if (errno != EAGAIN && errno != EINTR) {
            return Answer::let_go;
        } else if (!wait_for(connection.descriptor(), POLLOUT, until)) {
            return not_in_time();
        }
    }
    return Answer::given;
}

// One line, without its newline.
Answer read_answer(const Connection& connection, const std::string& path, Clock::time_point until, std::string& text) {
    text.clear();
    std::array<char, 65536> part;
    while (text.empty() || text.back() != '\n') {
        if (!wait_for(connection.descriptor(), POLLIN, until)) {
            return not_in_time();
        }
        const ssize_t bytes = recv(connection.descriptor(), part.data(), part.size(), 0);
        if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) {
            continue;
        }
        if (bytes <= 0) {
            return Answer::let_go;
        }
        text.append(part.data(), static_cast<std::size_t>(bytes));
        if (text.size() > longest_answer) {
            refuse(path, "does not belong to libstagehand: its answer does not end");
        }
    }
    text.pop_back();
    return Answer::given;
}

// The folders in which processes of a user have their sockets by default.
std::vector<std::string> default_folders(uid_t user) {
    std::vector<std::string> folders;
    const auto add = [&](std::string folder) {
        if (std::find(folders.begin(), folders.end(), folder) == folders.end()) {
            folders.push_back(std::move(folder));
        }
    };
    const char* runtime_folder = std::getenv("XDG_RUNTIME_DIR");
    if (runtime_folder != nullptr && *runtime_folder == '/') {
        add(std::string(runtime_folder) + "/stagehand");
    }
    add(fmt::format("/run/user/{}/stagehand", user));
    add(fmt::format("/tmp/stagehand-{}", user));
    return folders;
}

bool is_socket(const std::string& path) {
    struct stat found = {};
    return lstat(path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode);
}

// The sockets "<process id>.sock" of a folder.
std::vector<std::string> sockets_in(const std::string& folder) {
    std::vector<std::string> paths;
    DIR* const directory = opendir(folder.c_str());
    if (directory == nullptr) {
        return paths;
    }
    while (const dirent* entry = readdir(directory)) {
        const std::string_view name = entry->d_name;
        const bool named = name.size() > ending.size() && name.substr(name.size() - ending.size()) == ending &&
                           is_number(name.substr(0, name.size() - ending.size()));
        if (named && is_socket(folder + "/" + entry->d_name)) {
            paths.push_back(folder + "/" + entry->d_name);
        }
    }
    closedir(directory);
    std::sort(paths.begin(), paths.end());
    return paths;
}

// Whether a process listens on the socket and may be asked.
bool answers(MonitoredProcess& process) {
    try {
        const Connection connection;
        if (connect_to(connection, process.path, Clock::now()) != Answer::given) {
            return false;
        }
        check_peer(connection, process);
        return true;
    } catch (const CommandError&) {
        return false;
    }
}

constexpr const char* how_to_start =
    "a process answers if it has called sh_monitor_start() or has STAGEHAND_MONITOR=1 in its environment";

MonitoredProcess only_process() {
    std::vector<MonitoredProcess> found;
    const std::vector<std::string> folders = default_folders(geteuid());
    for (const std::string& folder : folders) {
        for (const std::string& path : sockets_in(folder)) {
            MonitoredProcess process;
            process.path = path;
            if (answers(process)) {
                found.push_back(process);
            }
        }
    }
    if (found.empty()) {
        throw CommandError(ExitCode::device,
                           fmt::format("no process answers in {}; {}", fmt::join(folders, " or "), how_to_start));
    }
    if (found.size() > 1) {
        std::vector<std::string> names;
        for (const MonitoredProcess& process : found) {
            names.push_back(fmt::format("{} ({})", process.pid, model::printable(process.program, 40)));
        }
        throw CommandError(ExitCode::usage,
                           fmt::format("{} processes answer: {}; name one", found.size(), fmt::join(names, ", ")));
    }
    return found.front();
}

MonitoredProcess process_of_id(const std::string& id) {
    MonitoredProcess process;
    process.pid = static_cast<pid_t>(std::stol(id));
    struct stat owner = {};
    if (!process.lives() || stat(fmt::format("/proc/{}", process.pid).c_str(), &owner) != 0) {
        throw CommandError(ExitCode::device, fmt::format("there is no process {}", process.pid));
    }
    for (const uid_t user : {geteuid(), owner.st_uid}) {
        for (const std::string& folder : default_folders(user)) {
            process.path = fmt::format("{}/{}{}", folder, process.pid, ending);
            if (is_socket(process.path)) {
                return process;
            }
        }
    }
    throw CommandError(ExitCode::device,
                       fmt::format("process {} does not answer: it has no socket in {}; {}", process.pid,
                                   fmt::join(default_folders(owner.st_uid), " or "), how_to_start));
}

}  // namespace

std::string MonitoredProcess::description() const {
    if (pid == 0) {
        return model::printable(path, 200);
    }
    return program.empty() ? fmt::format("process {}", pid)
                           : fmt::format("process {} ({})", pid, model::printable(program, 40));
}

bool MonitoredProcess::lives() const {
    if (pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH)) {
        return false;
    }
    // The state follows the name, which is in brackets and may hold any characters.
    std::ifstream file(fmt::format("/proc/{}/stat", pid));
    std::string line;
    std::getline(file, line);
    const auto name_end = line.rfind(") ");
    return name_end == std::string::npos || line.compare(name_end + 2, 1, "Z") != 0;
}

MonitoredProcess find_process(const std::string& wanted) {
    if (wanted.empty()) {
        return only_process();
    }
    if (is_number(wanted)) {
        return process_of_id(wanted);
    }
    MonitoredProcess process;
    process.path = wanted;
    if (!is_socket(wanted)) {
        struct stat found = {};
        refuse(wanted,
               stat(wanted.c_str(), &found) == 0 ? "is neither a process id nor a socket" : std::strerror(errno));
    }
    return process;
}

Answer ask(MonitoredProcess& process, std::string& text) {
    const auto until = Clock::now() + patience;
    const Connection connection;
    Answer answer = connect_to(connection, process.path, until);
    if (answer == Answer::given) {
        check_peer(connection, process);
        answer = send_request(connection, until);
    }
    return answer == Answer::given ? read_answer(connection, process.path, until, text) : answer;
}

}  // namespace stagehand::cli
