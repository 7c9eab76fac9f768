#include "process_clients.h"

#include <chrono>
#include <cstdlib>

#include <fmt/format.h>

namespace stagehand::cli {

namespace {

using Clock = SocketClient::Clock;

constexpr auto patience = std::chrono::seconds(3);
constexpr auto longest_pause = std::chrono::hours(24);
// Enough for the snapshot of about ten thousand runtimes.
constexpr std::size_t longest_answer = std::size_t{16} << 20;

// Splits an answer of HTTP/1.0 or 1.1 whose connection has ended.
bool split(const std::string& text, ControlAnswer& out) {
    const std::size_t end = text.find("\r\n\r\n");
    const std::size_t space = text.find(' ');
    if (!text.starts_with("HTTP/1.") || end == std::string::npos || space + 4 > end) return false;
    out.status = std::atoi(text.c_str() + space + 1);
    out.body = text.substr(end + 4);
    return out.status >= 100;
}

// Sends a request, and reads up to the end of the connection. By HTTP/1.0 the connection ends with the answer. Returns
// let_go if it ended without one.
Answer exchange(SocketClient& client, const std::string& path, const std::string& request, Clock::time_point until,
                ControlAnswer& out) {
    std::string text;
    Answer answer = client.send(request, Clock::now() + patience);
    while (answer == Answer::given) {
        if (text.size() > longest_answer) refuse(path, "is no control of libstagehand: its answer does not end");
        answer = client.receive(text, until);
    }
    if (answer != Answer::let_go || text.empty()) return answer;
    if (!split(text, out)) refuse(path, "is no control of libstagehand: its answer is not HTTP");
    return Answer::given;
}

}  // namespace

ProcessSocket find_process(const std::string& wanted) {
    return find_socket({".sock", false, "processes", "name one",
                        "a process answers if it has STAGEHAND_MONITOR=1 in its environment, or has called "
                        "sh_control_start() without a device"},
                       wanted);
}

Answer ask_for_snapshot(ProcessSocket& process, std::string& text) {
    const auto until = Clock::now() + patience;
    SocketClient client(process.path);
    Answer answer = client.connect(until);
    ControlAnswer given;
    if (answer == Answer::given) {
        process.pid = client.check_peer();
        process.program = program_of(process.pid);
        answer = exchange(client, process.path, "GET /snapshot HTTP/1.0\r\nHost: localhost\r\n\r\n", until, given);
    }
    if (answer != Answer::given) return answer;
    if (given.status != 200)
        refuse(process.path, fmt::format("does not tell its figures: {}", model::printable(given.body, 200)));
    if (!given.body.ends_with('\n')) return Answer::let_go;
    text = std::move(given.body);
    return Answer::given;
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
        const std::string authorization = token.empty() ? "" : fmt::format("Authorization: Bearer {}\r\n", token);
        const std::string request = fmt::format(
            "POST {} HTTP/1.0\r\nHost: localhost\r\n{}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
            target, authorization, body.size(), body);
        answer = exchange(client, path, request, Clock::now() + longest_pause, out);
    }
    if (answer == Answer::none) refuse(path, "the process takes connections, but does not answer");
    if (answer == Answer::let_go) refuse(path, "the process has ended the connection without an answer");
    return answer;
}

}  // namespace stagehand::cli
