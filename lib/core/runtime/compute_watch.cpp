#include "core/runtime/compute_watch.h"

#include <algorithm>

#include "base/log.h"

namespace stagehand::core {
namespace {

constexpr double kLeastGain = 0.02;  // of a step; the times are not known better than that
// Times that have lasted for a number of steps are taken to last for so many times that number.
constexpr double kLasting = 8;

}  // namespace

void ComputeWatch::step_begins(const Planner::Result& plan) {
    const bool streams = plan.bytes_per_step > 0 && parts_.order.known();
    if (trusted_ || !streams || parts_.meter.measuring() || parts_.meter.has_sample()) return;
    if (drift_.begin_step(parts_.order.size(), plan.step_ns)) parts_.meter.start_sample();
}

void ComputeWatch::plan_changed(uint64_t took_ns) {
    drift_.begin_anew();
    parts_.meter.drop_sample();
    offer_ = {};
    change_ns_ = took_ns;
}

Status ComputeWatch::look(Planner& planner, const Planner::Limits& limits, const Planner::Result& plan,
                          bool* out_changed) {
    *out_changed = false;
    if (!parts_.meter.has_sample()) return Status();
    const auto& entries = parts_.order.entries();
    std::vector<uint64_t> times, planned;
    if (parts_.meter.read_sample(entries, &times) != ComputeMeter::Read::yes) return Status();
    for (const Order::Entry& entry : entries) planned.push_back(entry.compute_ns);
    if (!drift_.saw(planned, std::move(times))) return Status();
    // The same times lead to the same offer. Only the number of steps that they have lasted for is another one.
    if (offer_.times.empty() || policy::differ(offer_.times, drift_.changed()))
        SH_TRY(make_offer(planner, limits, plan));
    if (!is_worth_it()) return Status();
    std::vector<Order::Entry> changed = entries;
    for (size_t i = 0; i < changed.size(); i++) changed[i].compute_ns = offer_.times[i];
    parts_.order.set(std::move(changed), parts_.registry.units().size(), parts_.order.given());
    log_line(SH_LOG_INFO,
             "%s: the engine computes for other times than planned: a new plan makes a step of %.3f ms %.3f",
             parts_.gate.name().c_str(), offer_.now_ns / 1e6, offer_.then_ns / 1e6);
    *out_changed = true;
    return Status();
}

Status ComputeWatch::make_offer(Planner& planner, const Planner::Limits& limits, const Planner::Result& plan) {
    Offer offer;
    offer.times = drift_.changed();
    Order order = parts_.order;
    std::vector<Order::Entry> entries = order.entries();
    for (size_t i = 0; i < entries.size(); i++) entries[i].compute_ns = offer.times[i];
    order.set(std::move(entries), parts_.registry.units().size(), order.given());
    offer.now_ns = planner.step_ns(order, limits, plan);
    Planner::Result other;
    SH_TRY(planner.make(order, limits, plan.share_pages, &other));
    offer.then_ns = other.step_ns;
    // Resident pages that are new come over the link once, and so do the contents of the ring.
    uint64_t pages = other.ring_pages;
    for (size_t i = 0; i < other.places.size(); i++) {
        const uint32_t own = i < plan.places.size() ? plan.places[i].own : 0;  // a block may be newer than the plan
        pages += other.places[i].own - std::min(other.places[i].own, own);
    }
    offer.cost_ns =
        static_cast<double>(change_ns_) + static_cast<double>(pages * parts_.page_bytes()) / limits.link_bytes_per_ns;
    offer_ = std::move(offer);
    return Status();
}

bool ComputeWatch::is_worth_it() const {
    const double gain = offer_.gain_ns();
    if (offer_.now_ns <= 0 || gain < kLeastGain * offer_.now_ns) return false;
    return gain * kLasting * static_cast<double>(drift_.steps_since()) >= offer_.cost_ns;
}

}  // namespace stagehand::core
