#include "socket_client.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "exit_code.h"
#include "interrupt.h"
#include "model/text.h"

namespace stagehand::cli {

namespace {

Answer not_in_time() { return interrupted() != 0 ? Answer::interrupted : Answer::none; }

}  // namespace

void refuse(const std::string& path, std::string_view why) {
    throw CommandError(ExitCode::device, fmt::format("{}: {}", model::printable(path, 200), why));
}

SocketClient::SocketClient(const std::string& path)
    : path_(path), descriptor_(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    if (descriptor_ < 0) throw CommandError(ExitCode::device, fmt::format("no socket: {}", std::strerror(errno)));
}

SocketClient::~SocketClient() { close(descriptor_); }

Answer SocketClient::connect(Clock::time_point until) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    if (path_.size() >= sizeof address.sun_path) refuse(path_, "is longer than a socket's path can be");
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    while (::connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        if (errno == ENOENT || errno == ECONNREFUSED || errno == ENOTDIR) return Answer::gone;
        if (errno != EAGAIN && errno != EINTR) refuse(path_, std::strerror(errno));
        // The socket's queue is full.
        if (interrupted() != 0 || Clock::now() >= until) return not_in_time();
        poll(nullptr, 0, 10);
    }
    return Answer::given;
}

pid_t SocketClient::check_peer() const {
    ucred peer = {};
    socklen_t size = sizeof peer;
    if (getsockopt(descriptor_, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) refuse(path_, std::strerror(errno));
    if (geteuid() != 0 && peer.uid != geteuid() && peer.uid != 0)
        refuse(path_, fmt::format("belongs to user {}", peer.uid));
    return peer.pid;
}

Answer SocketClient::send(std::string_view text, Clock::time_point until) {
    while (!text.empty()) {
        const ssize_t part = ::send(descriptor_, text.data(), text.size(), MSG_NOSIGNAL);
        if (part >= 0)
            text.remove_prefix(static_cast<std::size_t>(part));
        else if (errno != EAGAIN && errno != EINTR)
            return Answer::let_go;
        else if (!wait_until(descriptor_, POLLOUT, until))
            return not_in_time();
    }
    return Answer::given;
}

Answer SocketClient::receive(std::string& text, Clock::time_point until) {
    std::array<char, 65536> part;
    while (wait_until(descriptor_, POLLIN, until)) {
        const ssize_t bytes = recv(descriptor_, part.data(), part.size(), 0);
        if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (bytes <= 0) return Answer::let_go;
        text.append(part.data(), static_cast<std::size_t>(bytes));
        return Answer::given;
    }
    return not_in_time();
}

}  // namespace stagehand::cli
