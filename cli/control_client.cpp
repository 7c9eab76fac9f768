#include "control_client.h"

#include <chrono>
#include <cstdlib>

#include <fmt/format.h>

#include "process_sockets.h"

namespace stagehand::cli {

namespace {

using Clock = SocketClient::Clock;

constexpr auto patience = std::chrono::seconds(3);
constexpr auto longest_pause = std::chrono::hours(24);
constexpr std::size_t longest_answer = std::size_t{1} << 20;

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
