#include "control/listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace stagehand::control {
Status Listener::open(const Address& address, std::unique_ptr<Listener>* out) {
    std::unique_ptr<Listener> listener(new Listener(address));
    if (address.is_tcp())
        SH_TRY(listener->listen_on_port());
    else
        SH_TRY(UnixSocket::open(address.path, &listener->socket_));
    *out = std::move(listener);
    return Status();
}

void Listener::abandon() {
    (void)tcp_.close();
    if (socket_) socket_->abandon();
}

Status Listener::listen_on_port() {
    const auto failed = [&](const char* what) {
        return Status(SH_ERROR_IO, "control " + address_.text() + ": " + what + ": " + std::strerror(errno));
    };
    const bool six = address_.kind == Address::Kind::ipv6;
    tcp_ = platform::Descriptor(socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!tcp_.is_open()) return failed("a socket could not be created");
    const int on = 1;
    setsockopt(tcp_.number(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in6 to6 = {};
    sockaddr_in to4 = {};
    to6.sin6_family = AF_INET6;
    to4.sin_family = AF_INET;
    to6.sin6_port = to4.sin_port = htons(address_.port);
    inet_pton(six ? AF_INET6 : AF_INET, address_.host.c_str(),
              six ? static_cast<void*>(&to6.sin6_addr) : &to4.sin_addr);
    auto* const to = six ? reinterpret_cast<sockaddr*>(&to6) : reinterpret_cast<sockaddr*>(&to4);
    socklen_t size = six ? sizeof to6 : sizeof to4;
    if (bind(tcp_.number(), to, size) != 0) return failed("the port could not be taken");
    if (listen(tcp_.number(), kBacklog) != 0) return failed("could not listen");
    if (getsockname(tcp_.number(), to, &size) != 0) return failed("could not be inspected");
    address_.port = ntohs(six ? to6.sin6_port : to4.sin_port);
    return Status();
}

}  // namespace stagehand::control
