#include "control/service.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "control/token.h"

namespace stagehand::control {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLongestPause = std::chrono::milliseconds(20);

class Counted {
public:
    explicit Counted(std::atomic<int>& count) : count_(count), before_(count.fetch_add(1)) {}
    ~Counted() { count_.fetch_sub(1); }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

    int before() const { return before_; }

private:
    std::atomic<int>& count_;
    const int before_;
};

}  // namespace

TransportLane Service::admit(const Request& request, Answer* out) const {
    // First of all, so that a stranger does not learn what there is.
    if (!token_.empty() && !has_token(request.authorization, token_)) {
        *out = unauthorized();
        return kAnswered;
    }
    const Route* const route = find_route(request.target);
    if (!route) {
        *out = unknown_path(request.target);
        return kAnswered;
    }
    if (!route->takes(request.method)) {
        *out = wrong_method(*route, request.method);
        return kAnswered;
    }
    if (!has_device() && route->endpoint != Endpoint::snapshot) {
        *out = no_device(*route);
        return kAnswered;
    }
    return route->changes() ? kChanges : kReads;
}

Answer Service::answer(const Request& request) {
    const Route* const route = find_route(request.target);
    if (!route) return unknown_path(request.target);
    Order order;
    if (const Status status = read_order(*route, request, &order); !status.ok()) return malformed(status);
    return route->changes() ? change(order) : read(route->endpoint);
}

// Tries again and again while other calls are in the way. They end without this thread.
Answer Service::change(const Order& order) {
    const Counted counted(changes_);
    if (counted.before() >= kMostChanges)
        return failure(409, "busy",
                       std::to_string(counted.before()) + " other requests to release or resume are under way already");
    const auto until =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(order.wait_seconds));
    auto made = sh_sized<sh_occupancy_change>();
    Status status;
    for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, kLongestPause)) {
        if (stopped_.load(std::memory_order_relaxed)) return failure(409, "busy", "the control is being stopped");
        status = occupant_->change(order, &made);
        if (status.code() != SH_ERROR_BUSY || Clock::now() >= until) break;
        std::this_thread::sleep_for(std::min<Clock::duration>(pause, until - Clock::now()));
    }
    std::vector<sh_occupancy_info> found;
    if (status.ok()) status = occupant_->tags(&found);
    return answer_to(order, status, made, found);
}

Answer Service::read(Endpoint endpoint) {
    if (endpoint == Endpoint::snapshot) {
        Answer answer;
        answer.body = make_snapshot_();
        return answer;
    }
    Figures figures;
    Status status = occupant_->total(&figures.total);
    if (status.ok() && endpoint == Endpoint::is_sleeping) return is_sleeping(figures.total);
    if (status.ok()) status = occupant_->tags(&figures.tags);
    if (status.ok()) status = occupant_->memory(&figures.memory);
    if (!status.ok()) return unreadable(status);
    figures.device = occupant_->name();
    if (endpoint == Endpoint::memory) return memory_document(figures);
    figures.runtimes = occupant_->runtimes();
    return metrics_document(figures, counters());
}

}  // namespace stagehand::control
