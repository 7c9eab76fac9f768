#include "control/address.h"

#include <arpa/inet.h>

#include <algorithm>

#include "base/number.h"

namespace stagehand::control {
namespace {

Status refused(const std::string& text, const std::string& why) {
    return Status(SH_ERROR_INVALID_ARGUMENT, "options.address \"" + text + "\" " + why);
}

bool is_loopback(const Address& address) {
    if (address.kind == Address::Kind::ipv6) {
        in6_addr read;
        return inet_pton(AF_INET6, address.host.c_str(), &read) == 1 && IN6_IS_ADDR_LOOPBACK(&read);
    }
    in_addr read;
    return inet_pton(AF_INET, address.host.c_str(), &read) == 1 && (ntohl(read.s_addr) >> 24) == 127;
}

bool read_port(std::string_view text, uint16_t* out) {
    const std::optional<uint16_t> port = read_number<uint16_t>(text);
    *out = port.value_or(0);
    return port.has_value();
}

}  // namespace

std::string Address::text() const {
    if (!is_tcp()) return path;
    return (kind == Kind::ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Status read_address(const std::string& text, Address* out) {
    *out = {};
    const bool named = text.rfind("unix:", 0) == 0;
    if (named || text.rfind('/', 0) == 0) {
        out->path = named ? text.substr(5) : text;
        if (out->path.empty()) return refused(text, "has no path");
        return Status();
    }
    const size_t colon = text.rfind(':');
    if (colon == std::string::npos || !read_port(text.substr(colon + 1), &out->port))
        return refused(text,
                       "is neither a path of a Unix socket (/PATH or unix:PATH) nor a loopback address and a port"
                       " (127.0.0.1:PORT, localhost:PORT or [::1]:PORT)");
    std::string host = text.substr(0, colon);
    out->kind = Address::Kind::ipv4;
    if (host == "localhost") host = "127.0.0.1";
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
        out->kind = Address::Kind::ipv6;
        host = host.substr(1, host.size() - 2);
    }
    out->host = host;
    if (!is_loopback(*out))
        return refused(text, "is not an address of the loopback interface: other machines could reach it");
    return Status();
}

std::string default_file(int64_t process, const std::string& device) {
    if (device.empty()) return std::to_string(process) + ".sock";
    std::string name = device;
    const auto is_plain = [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
               c == '.' || c == ':';
    };
    std::replace_if(
        name.begin(), name.end(), [&](char c) { return !is_plain(c); }, '-');
    return std::to_string(process) + "." + name + ".control";
}

}  // namespace stagehand::control
