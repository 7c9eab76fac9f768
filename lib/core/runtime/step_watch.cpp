#include "core/runtime/step_watch.h"

#include <algorithm>

#include "base/log.h"
#include "core/plan/source_speeds.h"

namespace stagehand::core {
namespace {

// Of a step. The times are not known better, and a plan is never more than 1.02 times as long as it need be.
constexpr double kLeastGain = 0.0195;
// What has lasted for a number of steps is taken to last for so many times that number.
constexpr double kLasting = 8;
// Offers for one plan come at growing intervals, because making one takes as long as planning.
constexpr uint64_t kStepsBetweenOffers = 8;
constexpr uint32_t kMostDoublings = 7;
constexpr double kOffersPart = 0.02;  // of the time goes into them
constexpr double kMostSteps = 4096;   // from one to the next

// The least that the copies of a step take. It is the same whichever kind of step the plan was made for.
double copy_ns(const PlanResult& plan) {
    return static_cast<double>(plan.bound_bytes_per_step) * 1e9 /
           static_cast<double>(std::max<uint64_t>(1, plan.link_bytes_per_second));
}

}  // namespace

void StepWatch::step_begins(const PlanResult& plan) {
    steps_++;
    speeds_.step_begins(plan);
    sampling_ = false;
    const bool streams = (plan.bytes_per_step > 0 || plan.unpack.kept_pages) && step_order_.order.known();
    if (trusted_ || !streams || step_order_.meter.measuring() || step_order_.meter.has_sample()) return;
    const uint32_t kind = kinds_.current();
    policy::TimeDrift& drift = kind == kNone ? drift_ : kinds_.at(kind).drift;
    sampling_ = drift.begin_step(step_order_.order.followed().size(), plan.step_ns) || kinds_.wants_times();
    if (sampling_) step_order_.meter.start_sample();
}

void StepWatch::step_ends() {
    step_order_.meter.end_sample();
    if (step_order_.meter.measured() && measured_kind_ == kNone) measured_kind_ = kinds_.current();
    if (sampling_) sample_kind_ = kinds_.current();
    sampling_ = false;
}

void StepWatch::plan_changed(double link_bytes_per_ns, uint64_t took_ns) {
    speeds_.plan_changed(link_bytes_per_ns, reason_ == kSpeeds);
    drift_.begin_anew();
    step_order_.meter.drop_sample();
    measured_kind_ = kNone;
    offer_ = {};
    offers_ = 0;
    next_offer_ = steps_;
    change_ns_ = took_ns;
    reason_ = kAsked;
}

// Writes the compute times that were measured in the last step into the order.
void StepWatch::read_first_times() {
    const bool known =
        measured_kind_ != kNone && kinds_.at(measured_kind_).live && !kinds_.at(measured_kind_).entries.empty();
    auto entries = known ? kinds_.at(measured_kind_).entries : step_order_.order.followed().entries();
    const bool any = step_order_.meter.read(&entries);
    step_order_.meter.stop();
    if (!any) return;
    std::vector<uint64_t> times;
    for (const Order::Entry& entry : entries) times.push_back(entry.compute_ns);
    step_order_.order.set_times(known ? kinds_.at(measured_kind_).order : step_order_.order.followed().number(), times);
    // One whole step, as sure as two samples that agree.
    for (int twice = 0; twice < 2; twice++) kinds_.saw_times(measured_kind_, times);
}

void StepWatch::measure_if_missing() {
    const auto& entries = step_order_.order.followed().entries();
    const bool missing =
        std::all_of(entries.begin(), entries.end(), [](const Order::Entry& entry) { return entry.compute_ns == 0; });
    if (!step_order_.order.known() || !missing || was_measured_) return;
    step_order_.meter.start();
    was_measured_ = true;
}

// Returns true if there was a sample.
bool StepWatch::read_sample() {
    if (!step_order_.meter.has_sample()) return false;
    const bool known =
        sample_kind_ != kNone && kinds_.at(sample_kind_).live && !kinds_.at(sample_kind_).entries.empty();
    const auto& entries = known ? kinds_.at(sample_kind_).entries : step_order_.order.followed().entries();
    std::vector<uint64_t> times;
    if (step_order_.meter.read_sample(entries, &times) != ComputeMeter::Read::yes) return false;
    if (kinds_.saw_times(sample_kind_, std::move(times))) drift_.soon();
    return true;
}

void StepWatch::state_order(const PlanResult& plan, uint32_t max_held) {
    if (trusted_) return;
    // The engine may have changed for good. But if kinds hold several blocks at once, they need room for these as soon
    // as they come again.
    kinds_.remove_stale(step_order_.order, max_held > 1);
    planned_ = kinds_.times(step_order_.order, copy_ns(plan));
    for (const auto& [number, times] : planned_) step_order_.order.set_times(number, times);
}

Status StepWatch::look(PackedPlanner& planner, const PlanLimits& limits, const PlanResult& plan, bool* out_changed) {
    *out_changed = false;
    speeds_.look();
    const bool sampled = read_sample() && !trusted_;
    OrderTimes now = sampled ? kinds_.times(step_order_.order, copy_ns(plan)) : OrderTimes();
    const bool other_times = !now.empty() && differ(planned_, now);
    const bool other_speeds = speeds_.differs() && speeds_.may_plan();
    if (!other_times && !other_speeds) return Status();
    if (!other_times) now = planned_;
    PlanLimits with = limits;
    SH_TRY(speeds_.link(&with.link_bytes_per_ns));  // as seen by now
    // With the same times and speeds comes the same offer. Only the number of steps that they have lasted for is
    // another one.
    if (!offer_.made || differ(offer_.times, now) || offer_.verdict != speeds_.verdict()) {
        if (steps_ < next_offer_) return Status();
        SH_TRY(make_offer(planner, with, plan, std::move(now)));
    }
    uint64_t stable = UINT64_MAX;
    if (other_times) stable = kinds_.stable_for();
    if (other_speeds) stable = std::min(stable, speeds_.stable_for());
    if (!is_worth_it(stable)) return Status();
    reason_ = other_speeds ? kSpeeds : "plan: other compute times";
    const char* const what = other_speeds ? "blocks are copied at other speeds than planned"
                                          : "the engine computes for other times than planned";
    log_line(SH_LOG_INFO, "%s: %s: a new plan makes a step of %.3f ms %.3f", gate_.name().c_str(), what,
             offer_.now_ns / 1e6, offer_.then_ns / 1e6);
    *out_changed = true;
    return Status();
}

Status StepWatch::make_offer(PackedPlanner& planner, const PlanLimits& limits, const PlanResult& plan,
                             OrderTimes times) {
    Order order = step_order_.order;
    for (const auto& [number, of] : times) order.set_times(number, of);
    const uint64_t began = memory_.device.now_ns();
    next_offer_ = steps_ + (kStepsBetweenOffers << std::min(offers_++, kMostDoublings));
    Offer offer;
    offer.made = true;
    offer.times = std::move(times);
    offer.verdict = speeds_.verdict();
    offer.now_ns = planner.plain().step_ns(order, limits, plan);
    PlanResult other;
    SH_TRY(planner.make(order, limits, plan.share_pages, &other));
    offer.then_ns = other.step_ns;
    // Resident pages that are new come once, as fast as their source and the link allow. So do the contents of the
    // ring.
    std::vector<double> source;
    find_source_ns_per_byte(memory_.registry.units(), &source);
    const double page = static_cast<double>(share_.page_bytes()), on_link = 1 / limits.link_bytes_per_ns;
    offer.cost_ns = static_cast<double>(change_ns_) + other.ring_pages * page * on_link;
    for (size_t i = 0; i < other.places.size(); i++) {
        const uint32_t own = i < plan.places.size() ? plan.places[i].own : 0;  // a block may be newer than the plan
        const uint32_t more = other.places[i].own - std::min(other.places[i].own, own);
        offer.cost_ns += more * page * std::max(on_link, source[i]);
    }
    if (!(other.unpack == plan.unpack)) offer.cost_ns += planner.kept_ns(limits, other);
    const auto took_ns = static_cast<double>(memory_.device.now_ns() - began);
    const double step_ns = offer.now_ns > 0 ? offer.now_ns : plan.step_ns;
    if (step_ns > 0) next_offer_ += static_cast<uint64_t>(std::min(kMostSteps, took_ns / (kOffersPart * step_ns)));
    offer_ = std::move(offer);
    return Status();
}

bool StepWatch::is_worth_it(uint64_t stable_for) const {
    const double gain = offer_.gain_ns();
    if (offer_.now_ns <= 0 || gain < kLeastGain * offer_.now_ns) return false;
    return gain * kLasting * static_cast<double>(stable_for) >= offer_.cost_ns;
}

}  // namespace stagehand::core
