// Service: answers the requests of one control. It knows no sockets.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "control/answers.h"
#include "control/http.h"
#include "control/metrics.h"
#include "control/occupant.h"
#include "control/transport.h"

namespace stagehand::control {

// Makes the document of the whole process. May throw.
using MakeSnapshot = std::string();

// Thread-safe.
class Service {
public:
    // Without an occupant only the snapshot of the process is told. An empty token: requests need none.
    Service(std::unique_ptr<Occupant> occupant, MakeSnapshot* make_snapshot, std::string token)
        : occupant_(std::move(occupant)), make_snapshot_(make_snapshot), token_(std::move(token)) {}

    // Looks at a request's header, and says which lane answers the request. kAnswered: `out` has the answer.
    TransportLane admit(const Request& request, Answer* out) const;
    // Answers a request that was admitted. Waits if it changes something.
    Answer answer(const Request& request);

    bool has_device() const { return occupant_ != nullptr; }

    // Waits of requests end at once, and requests that have not begun do nothing.
    void stop() { stopped_.store(true, std::memory_order_relaxed); }

    // Notes that an answer goes out.
    void count(unsigned status) {
        requests_.fetch_add(1, std::memory_order_relaxed);
        if (status >= 400) failures_.fetch_add(1, std::memory_order_relaxed);
    }
    Counters counters() const {
        return {requests_.load(std::memory_order_relaxed), failures_.load(std::memory_order_relaxed)};
    }

    // A request that changes something and finds so many before it is refused at once. So is each further one, and
    // there are threads enough for that.
    static constexpr int kMostChanges = 3;

private:
    Answer change(const Order& order);
    Answer read(Endpoint endpoint);

    const std::unique_ptr<Occupant> occupant_;
    MakeSnapshot* const make_snapshot_;
    const std::string token_;
    std::atomic<bool> stopped_{false};
    std::atomic<int> changes_{0};  // that are being answered
    std::atomic<uint64_t> requests_{0}, failures_{0};
};

}  // namespace stagehand::control
