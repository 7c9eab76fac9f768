#include "monitor_client.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exit_code.h"
#include "model/text.h"
#include "process_sockets.h"

namespace stagehand::cli {

namespace {

using Clock = SocketClient::Clock;

constexpr auto patience = std::chrono::seconds(3);
// Enough for about ten thousand runtimes.
constexpr std::size_t longest_answer = std::size_t{16} << 20;
constexpr std::string_view request = "snapshot\n";
constexpr std::string_view ending = ".sock";

void note_peer(const SocketClient& client, MonitoredProcess& process) {
    process.pid = client.check_peer();
    process.program = program_of(process.pid);
}

// One line, without its newline.
Answer read_answer(SocketClient& client, const std::string& path, Clock::time_point until, std::string& text) {
    text.clear();
    while (text.empty() || text.back() != '\n') {
        const Answer answer = client.receive(text, until);
        if (answer != Answer::given) return answer;
        if (text.size() > longest_answer) refuse(path, "does not belong to libstagehand: its answer does not end");
    }
    text.pop_back();
    return Answer::given;
}

// Whether a name is "<process id>.sock".
bool is_name_of_monitor(std::string_view name) {
    return name.ends_with(ending) && is_number(name.substr(0, name.size() - ending.size()));
}

// Whether a process listens on the socket and may be asked.
bool answers(MonitoredProcess& process) {
    try {
        SocketClient client(process.path);
        if (client.connect(Clock::now()) != Answer::given) return false;
        note_peer(client, process);
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
        for (const std::string& path : sockets_in(folder, is_name_of_monitor)) {
            MonitoredProcess process;
            process.path = path;
            if (answers(process)) found.push_back(process);
        }
    }
    if (found.empty()) {
        throw CommandError(ExitCode::device,
                           fmt::format("no process answers in {}; {}", fmt::join(folders, " or "), how_to_start));
    }
    if (found.size() > 1) {
        std::vector<std::string> names;
        for (const MonitoredProcess& process : found)
            names.push_back(fmt::format("{} ({})", process.pid, model::printable(process.program, 40)));
        throw CommandError(ExitCode::usage,
                           fmt::format("{} processes answer: {}; name one", found.size(), fmt::join(names, ", ")));
    }
    return found.front();
}

MonitoredProcess process_of_id(const std::string& id) {
    MonitoredProcess process;
    process.pid = static_cast<pid_t>(std::stol(id));
    const std::vector<std::string> folders = folders_for_process(process.pid);
    for (const std::string& folder : folders) {
        process.path = fmt::format("{}/{}{}", folder, process.pid, ending);
        if (is_socket(process.path)) return process;
    }
    throw CommandError(ExitCode::device, fmt::format("process {} does not answer: it has no socket in {}; {}",
                                                     process.pid, fmt::join(folders, " or "), how_to_start));
}

}  // namespace

std::string MonitoredProcess::description() const {
    if (pid == 0) return model::printable(path, 200);
    return program.empty() ? fmt::format("process {}", pid)
                           : fmt::format("process {} ({})", pid, model::printable(program, 40));
}

bool MonitoredProcess::lives() const { return is_alive(pid); }

MonitoredProcess find_process(const std::string& wanted) {
    if (wanted.empty()) return only_process();
    if (is_number(wanted)) return process_of_id(wanted);
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
    SocketClient client(process.path);
    Answer answer = client.connect(until);
    if (answer == Answer::given) {
        note_peer(client, process);
        answer = client.send(request, until);
    }
    return answer == Answer::given ? read_answer(client, process.path, until, text) : answer;
}

}  // namespace stagehand::cli
