#include "control_client.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

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
constexpr auto longest_pause = std::chrono::hours(24);
constexpr std::size_t longest_answer = std::size_t{1} << 20;
constexpr std::string_view ending = ".control";
constexpr const char* how_to_start =
    "only a process that has called sh_control_start() (device.serve_control() in Python) can be asked";

// A name is "<process id>.<device>.control".
struct ControlName {
    std::string process, device;
};

bool read_name(std::string_view name, ControlName& out) {
    const std::size_t dot = name.find('.');
    if (!name.ends_with(ending) || dot == std::string_view::npos || dot >= name.size() - ending.size()) return false;
    out.process = name.substr(0, dot);
    out.device = name.substr(dot + 1, name.size() - ending.size() - dot - 1);
    return is_number(out.process);
}

ControlName name_of(const std::string& path) {
    ControlName name;
    read_name(std::string_view(path).substr(path.rfind('/') + 1), name);
    return name;
}

bool answers(const std::string& path) {
    try {
        SocketClient client(path);
        if (client.connect(Clock::now()) != Answer::given) return false;
        client.check_peer();
        return true;
    } catch (const CommandError&) {
        return false;
    }
}

std::string listed(const std::vector<std::string>& paths) {
    std::vector<std::string> names;
    for (const std::string& path : paths) {
        const ControlName name = name_of(path);
        names.push_back(fmt::format("{} in process {} ({})", name.device, name.process,
                                    model::printable(program_of(std::stoi(name.process)), 40)));
    }
    return fmt::format("{}", fmt::join(names, ", "));
}

// The only one of the controls in these folders that are wanted.
std::string only_control(const std::vector<std::string>& folders, const std::string& process,
                         const std::string& device) {
    std::vector<std::string> found;
    for (const std::string& folder : folders) {
        const auto is_wanted = [&](std::string_view text) {
            ControlName name;
            return read_name(text, name) && (process.empty() || name.process == process) &&
                   (device.empty() || name.device == device);
        };
        for (const std::string& path : sockets_in(folder, is_wanted))
            if (answers(path)) found.push_back(path);
    }
    if (found.size() == 1) return found.front();
    if (found.size() > 1) {
        throw CommandError(ExitCode::usage, fmt::format("{} controls answer: {}; choose one with PROCESS, --device or "
                                                        "--socket",
                                                        found.size(), listed(found)));
    }
    const std::string who = process.empty() ? "no process answers" : fmt::format("process {} does not answer", process);
    const std::string what = device.empty() ? "" : fmt::format(" for device {}", model::in_quotes(device));
    throw CommandError(ExitCode::device, fmt::format("{}{}: there is no control in {}; {}", who, what,
                                                     fmt::join(folders, " or "), how_to_start));
}

// Splits an answer of HTTP/1.0 or 1.1 whose connection has ended.
bool split(const std::string& text, ControlAnswer& out) {
    const std::size_t end = text.find("\r\n\r\n");
    const std::size_t space = text.find(' ');
    if (!text.starts_with("HTTP/1.") || end == std::string::npos || space + 4 > end) return false;
    out.status = std::atoi(text.c_str() + space + 1);
    out.body = text.substr(end + 4);
    return out.status >= 100;
}

// Reads up to the end of the connection.
Answer read_all(SocketClient& client, const std::string& path, std::string& text) {
    while (text.size() <= longest_answer) {
        const Answer answer = client.receive(text, Clock::now() + longest_pause);
        if (answer != Answer::given) return answer;
    }
    refuse(path, "is no control of libstagehand: its answer does not end");
}

}  // namespace

std::string find_control(const std::string& process, const std::string& device) {
    if (process.empty()) return only_control(default_folders(geteuid()), process, device);
    if (is_number(process))
        return only_control(folders_for_process(static_cast<pid_t>(std::stol(process))), process, device);
    if (!is_socket(process)) {
        struct stat found = {};
        refuse(process,
               stat(process.c_str(), &found) == 0 ? "is neither a process id nor a socket" : std::strerror(errno));
    }
    return process;
}

Answer ask_control(const std::string& path, const std::string& target, const std::string& body,
                   const std::string& token, ControlAnswer& out) {
    SocketClient client(path);
    Answer answer = client.connect(Clock::now() + patience);
    if (answer == Answer::gone)
        refuse(path, "nobody listens there: the process has ended, or it has stopped its control");
    if (answer == Answer::given) {
        client.check_peer();
        // By HTTP/1.0 the connection ends with the answer.
        const std::string authorization = token.empty() ? "" : fmt::format("Authorization: Bearer {}\r\n", token);
        answer = client.send(fmt::format("POST {} HTTP/1.0\r\nHost: localhost\r\n{}Content-Type: application/json\r\n"
                                         "Content-Length: {}\r\n\r\n{}",
                                         target, authorization, body.size(), body),
                             Clock::now() + patience);
    }
    std::string text;
    if (answer == Answer::given) answer = read_all(client, path, text);
    if (answer == Answer::interrupted) return answer;
    if (answer == Answer::none) refuse(path, "the process takes connections, but does not answer");
    if (text.empty()) refuse(path, "the process has ended the connection without an answer");
    if (!split(text, out)) refuse(path, "is no control of libstagehand: its answer is not HTTP");
    return Answer::given;
}

}  // namespace stagehand::cli
