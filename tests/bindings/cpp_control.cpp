// The owner of control.hpp: it answers while it lives, moves, and ends by scope. Wrong arguments throw an exception.
#include <cstdio>
#include <cstdlib>
#include <stagehand/stagehand.hpp>
#include <string>
#include <type_traits>
#include <utility>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "owners.hpp"

namespace {

namespace sh = stagehand;

static_assert(!std::is_copy_constructible<sh::Control>::value && !std::is_copy_assignable<sh::Control>::value, "");

// Returns the first line of an answer; an empty text if nobody listens.
std::string ask(const std::string& path, const std::string& method, const std::string& target) {
    const int descriptor = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    std::string text;
    if (connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
        const std::string request = method + " " + target + " HTTP/1.0\r\n\r\n";
        CHECK(send(descriptor, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size()));
        char part[512];
        for (ssize_t got; (got = recv(descriptor, part, sizeof part, 0)) > 0;)
            text.append(part, static_cast<std::size_t>(got));
    }
    close(descriptor);
    return text.substr(0, text.find('\r'));
}

void it_answers_while_it_lives(sh::Device& device, const std::string& path) {
    {
        const sh::Allocation weights(device, 1 << 20, "weights");
        sh::Control control(device, path);
        CHECK(control.address() == path && control.info().port == 0);
        CHECK(ask(path, "POST", "/sleep") == "HTTP/1.0 200 OK");
        CHECK(device.occupancy("weights").state == SH_OCCUPANCY_RELEASED);
        sh::Control moved(std::move(control));
        CHECK(ask(path, "POST", "/wake_up") == "HTTP/1.0 200 OK");
        CHECK(ask(path, "GET", "/nowhere") == "HTTP/1.0 404 Not Found");
        sh::Control other(device, path + "2");
        other = std::move(moved);
        CHECK(ask(path + "2", "GET", "/memory").empty() && !ask(path, "GET", "/memory").empty());
        other.stop();
        CHECK(ask(path, "GET", "/memory").empty());
    }
    { const sh::Control control(device, "unix:" + path, "0123456789abcdef"); }
    const sh::Control process;
    CHECK(ask(process.address(), "GET", "/snapshot") == "HTTP/1.0 200 OK");
    CHECK(ask(path, "GET", "/memory").empty());
}

void impossible_arguments(sh::Device& device) {
    CHECK(status_of([&] { sh::Control none(device, "0.0.0.0:1", "0123456789abcdef"); }) == SH_ERROR_INVALID_ARGUMENT);
    CHECK(status_of([&] { sh::Control none(device, "127.0.0.1:0"); }) == SH_ERROR_INVALID_ARGUMENT);
    CHECK(status_of([&] { sh::Control none(device, "/no/such/folder"); }) == SH_ERROR_IO);
    const sh::Control tcp(device, "127.0.0.1:0", "0123456789abcdef");
    CHECK(tcp.info().port != 0 && tcp.address() == "127.0.0.1:" + std::to_string(tcp.info().port));
}

}  // namespace

int main() {
    char folder[] = "/tmp/stagehand-XXXXXX";
    if (!mkdtemp(folder)) return 1;
    try {
        sh::Device device("host");
        it_answers_while_it_lives(device, std::string(folder) + "/control");
        impossible_arguments(device);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "unexpected: %s\n", error.what());
        return 1;
    }
    rmdir(folder);
    return failed_checks != 0;
}
