// Listener: the listening socket of a control, on a Unix socket or on a port of the loopback interface.
#pragma once

#include <memory>

#include "base/status.h"
#include "control/address.h"
#include "control/unix_socket.h"
#include "platform/descriptor.h"

namespace stagehand::control {

class Listener {
public:
    static Status open(const Address& address, std::unique_ptr<Listener>* out);

    const platform::Descriptor& descriptor() const { return socket_ ? socket_->descriptor() : tcp_; }
    const Address& address() const { return address_; }

    // For the child of a fork: closes the inherited descriptors.
    void abandon();

private:
    explicit Listener(Address address) : address_(std::move(address)) {}
    Status listen_on_port();

    Address address_;  // with the port that the system chose
    std::unique_ptr<UnixSocket> socket_;
    platform::Descriptor tcp_;
};

}  // namespace stagehand::control
