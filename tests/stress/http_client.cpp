#include "http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>

namespace stagehand::test {

HttpClient::HttpClient(const std::string& address) {
    const bool is_path = address[0] == '/';
    descriptor_ = socket(is_path ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval patience = {30, 0};
    setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (is_path) {
        sockaddr_un to = {};
        to.sun_family = AF_UNIX;
        address.copy(to.sun_path, sizeof to.sun_path - 1);
        connected_ = connect(descriptor_, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
    } else {
        sockaddr_in to = {};
        to.sin_family = AF_INET;
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + address.rfind(':') + 1)));
        connected_ = connect(descriptor_, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
    }
}

HttpClient::~HttpClient() { close(descriptor_); }

bool HttpClient::send(const std::string& text) {
    size_t sent = 0;
    while (sent < text.size()) {
        const ssize_t part = ::send(descriptor_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
        if (part <= 0) return false;
        sent += static_cast<size_t>(part);
    }
    return true;
}

HttpAnswer HttpClient::receive() {
    HttpAnswer answer;
    size_t end = 0, bytes = 0;
    while (true) {
        end = rest_.find("\r\n\r\n");
        if (end != std::string::npos) {
            answer.head = rest_.substr(0, end);
            const size_t length = answer.head.find("Content-Length: ");
            bytes = length == std::string::npos ? 0 : std::strtoul(answer.head.c_str() + length + 16, nullptr, 10);
            if (rest_.size() >= end + 4 + bytes) break;
        }
        char part[4096];
        const ssize_t got = recv(descriptor_, part, sizeof part, 0);
        if (got <= 0) return {};
        rest_.append(part, static_cast<size_t>(got));
    }
    answer.status = std::atoi(answer.head.c_str() + answer.head.find(' ') + 1);
    answer.body = rest_.substr(end + 4, bytes);
    rest_.erase(0, end + 4 + bytes);
    return answer;
}

bool HttpClient::is_closed_by_peer() {
    char byte;
    return recv(descriptor_, &byte, 1, 0) <= 0;
}

std::string request_text(const std::string& method, const std::string& target, const std::string& body,
                         const std::string& token) {
    return method + " " + target + " HTTP/1.1\r\nHost: localhost\r\n" +
           (token.empty() ? "" : "Authorization: Bearer " + token + "\r\n") +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

HttpAnswer http(const std::string& address, const std::string& method, const std::string& target,
                const std::string& body, const std::string& token) {
    HttpClient client(address);
    if (!client.connected()) return {};
    client.send(request_text(method, target, body, token));
    return client.receive();
}

}  // namespace stagehand::test
