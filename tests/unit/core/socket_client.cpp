#include "socket_client.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

namespace stagehand::test {

Folder::Folder() {
    char name[] = "/tmp/stagehand-test-XXXXXX";
    path_ = mkdtemp(name);
}

Folder::~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

bool exists(const std::string& path) {
    struct stat found;
    return lstat(path.c_str(), &found) == 0;
}

mode_t mode_of(const std::string& path) {
    struct stat found;
    return lstat(path.c_str(), &found) == 0 ? found.st_mode & 07777 : 0;
}

Connection::Connection(const std::string& path) : descriptor_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval ten_seconds = {10, 0};
    setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &ten_seconds, sizeof ten_seconds);
    setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &ten_seconds, sizeof ten_seconds);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    if (connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) error_ = errno;
}

Connection::~Connection() { close(); }

bool Connection::send(const std::string& text) {
    return ::send(descriptor_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

std::string Connection::receive() {
    std::string text;
    char bytes[4096];
    for (ssize_t got = 0; (got = recv(descriptor_, bytes, sizeof bytes, 0)) > 0;)
        text.append(bytes, static_cast<size_t>(got));
    return text;
}

void Connection::close() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
}

nlohmann::json ask(const std::string& path) {
    Connection connection(path);
    if (!connection.connected() || !connection.send("GET /snapshot HTTP/1.0\r\n\r\n")) return {};
    const std::string text = connection.receive();
    const size_t body = text.find("\r\n\r\n");
    if (body == std::string::npos || text.find('\n', body + 4) != text.size() - 1) return {};
    const auto document = nlohmann::json::parse(text.substr(body + 4), nullptr, false);
    return document.is_discarded() ? nlohmann::json() : document;
}

}  // namespace stagehand::test
