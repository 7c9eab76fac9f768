#include "process_clients.h"

#include <chrono>
#include <cstdlib>

#include <fmt/format.h>

namespace stagehand::cli {

namespace {

using Clock = SocketClient::Clock;

constexpr auto patience = std::chrono::seconds(3);
// Enough for about ten thousand runtimes.
constexpr std::size_t longest_snapshot = std::size_t{16} << 20;
constexpr auto longest_pause = std::chrono::hours(24);
constexpr std::size_t longest_answer = std::size_t{1} << 20;

// One line, without its newline.
Answer read_answer(SocketClient& client, const std::string& path, Clock::time_point until, std::string& text) {
    text.clear();
    while (text.empty() || text.back() != '\n') {
        const Answer answer = client.receive(text, until);
        if (answer != Answer::given) return answer;
        if (text.size() > longest_snapshot) refuse(path, "does not belong to libstagehand: its answer does not end");
    }
    text.pop_back();
    return Answer::given;
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

ProcessSocket find_monitor(const std::string& wanted) {
    return find_socket({".sock", false, "processes", "name one",
                        "a process answers if it has called sh_monitor_start() or has STAGEHAND_MONITOR=1 in its "
                        "environment"},
                       wanted);
}

Answer ask_monitor(ProcessSocket& process, std::string& text) {
    const auto until = Clock::now() + patience;
    SocketClient client(process.path);
    Answer answer = client.connect(until);
    if (answer == Answer::given) {
        process.pid = client.check_peer();
        process.program = program_of(process.pid);
        answer = client.send("snapshot\n", until);
    }
    return answer == Answer::given ? read_answer(client, process.path, until, text) : answer;
}

std::string find_control(const std::string& process, const std::string& device) {
    return find_socket({".control", true, "controls", "choose one with PROCESS, --device or --socket",
                        "only a process that has called sh_control_start() (device.serve_control() in Python) can be "
                        "asked"},
                       process, device)
        .path;
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
