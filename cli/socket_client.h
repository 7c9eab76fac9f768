// A connection to the Unix socket of another process: connects, checks the other side, sends and receives.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include <sys/types.h>

namespace stagehand::cli {

enum class Answer {
    given,
    none,         // the process takes connections, but does not answer in time
    let_go,       // the process ended the connection without an answer
    gone,         // no process listens on the socket
    interrupted,  // by a signal, see interrupt.h
};

// Ends the command with an error about a socket.
[[noreturn]] void refuse(const std::string& path, std::string_view why);

class SocketClient {
public:
    using Clock = std::chrono::steady_clock;

    // Connects to the socket at `path`, which has to outlive this object. Throws CommandError if that is not allowed.
    explicit SocketClient(const std::string& path);
    ~SocketClient();
    SocketClient(const SocketClient&) = delete;
    SocketClient& operator=(const SocketClient&) = delete;

    Answer connect(Clock::time_point until);
    // Returns the process on the other side. Throws CommandError if it belongs to another user: in a folder that every
    // user can write to, the file may be any user's.
    pid_t check_peer() const;
    Answer send(std::string_view text, Clock::time_point until);
    // Appends what has arrived. Returns let_go at the end of the connection.
    Answer receive(std::string& text, Clock::time_point until);

private:
    const std::string& path_;
    const int descriptor_;
};

}  // namespace stagehand::cli
