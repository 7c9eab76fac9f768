#include "monitor_client.h"

#include <chrono>
#include <string_view>

namespace stagehand::cli {

namespace {

using Clock = SocketClient::Clock;

constexpr auto patience = std::chrono::seconds(3);
// Enough for about ten thousand runtimes.
constexpr std::size_t longest_answer = std::size_t{16} << 20;

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

}  // namespace stagehand::cli
