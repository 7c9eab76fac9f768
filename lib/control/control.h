// Control: a service that answers on a socket, with its threads.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "control/listener.h"
#include "control/service.h"
#include "control/transport.h"

namespace stagehand::control {

class Control {
public:
    static Status start(const Address& address, std::unique_ptr<Occupant> occupant, MakeSnapshot* make_snapshot,
                        std::string token, std::shared_ptr<Control>* out);
    // Waits for the requests that are being answered. Must not run on one of the control's own threads.
    ~Control();
    Control(const Control&) = delete;
    Control& operator=(const Control&) = delete;

    const Address& address() const { return address_; }
    Counters counters() const { return service_.counters(); }
    // Whether the calling thread answers a request of this control.
    bool is_calling() const;

private:
    friend class Controls;

    Control(std::unique_ptr<Occupant> occupant, MakeSnapshot* make_snapshot, std::string token)
        : service_(std::move(occupant), make_snapshot, std::move(token)) {}
    Status open(const Address& address);
    Status start_threads();
    void serve();
    void halt();
    void abandon() { listener_->abandon(); }

    Service service_;
    Address address_;
    std::unique_ptr<Listener> listener_;
    const Transport* transport_ = nullptr;
    void* server_ = nullptr;  // of the transport
    std::thread serving_;
    std::vector<std::thread> working_;
};

}  // namespace stagehand::control
