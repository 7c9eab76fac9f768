// Where a control listens: reads the address that a caller gives.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace stagehand::control {

struct Address {
    enum class Kind { unix_socket, ipv4, ipv6 };

    Kind kind = Kind::unix_socket;
    std::string path;   // of a Unix socket
    std::string host;   // of TCP, in digits: "127.0.0.1"
    uint16_t port = 0;  // of TCP; 0: any

    bool is_tcp() const { return kind != Kind::unix_socket; }
    // "127.0.0.1:8431", or the path.
    std::string text() const;
};

// Takes the path of a Unix socket, or a port of the loopback interface. Refuses everything else by name.
Status read_address(const std::string& text, Address* out);

// The file of a control in the default folder: "4711.cuda:0.control", or "4711.sock" for the control of no device. What
// is neither a letter, a digit, '-', '_', '.' nor ':' in the device's name becomes '-'.
std::string default_file(int64_t process, const std::string& device);

}  // namespace stagehand::control
