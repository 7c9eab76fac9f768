#include "core/runtime/speed_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/no_throw.h"
#include "core/plan/source_speeds.h"

namespace stagehand::core {
namespace {

// A copy that takes less is not timed, because the events take too much of it.
constexpr double kShortestNs = 20'000;
constexpr double kLonePart = 8;  // and so many times what a copy takes more if it is timed
constexpr double kLinksApart = 0.1;
// Steps from one look at the sources to the next. The last three loads of a unit are others by then.
constexpr uint64_t kSourceSteps = 8;
constexpr uint64_t kBesideSteps = 8;  // for which other links must bring more or less than planned
constexpr uint64_t kLeastInterval = 8, kMostInterval = 1024;  // steps between plans for other speeds

bool apart(double one, double other) { return std::fabs(one - other) > kLinksApart * std::max(one, other); }

}  // namespace

Status SpeedWatch::link(double* bytes_per_ns) const {
    *bytes_per_ns = link_;
    if (link_ <= 0) SH_TRY(share_.device->link(share_.pages_beside(memory_.placement.pages()), bytes_per_ns));
    *bytes_per_ns += movers_.loader.speed_beside();
    return Status();
}

void SpeedWatch::step_begins(const PlanResult& plan) {
    steps_++;
    transfer::CopyMeter& meter = movers_.loader.meter();
    meter.stop();
    if (link_due_ || share_.device->link_is_given() || planned_link_ <= 0) return;
    if (plan.bytes_per_step == 0 || !step_order_.order.known()) return;
    if (!link_samples_.begin_step(transfer::CopyMeter::kMost, plan.step_ns)) return;
    link_due_ = true;
    const double least_ns = std::max(kShortestNs, kLonePart * static_cast<double>(share_.device->lone_copy_ns()));
    meter.start(static_cast<uint64_t>(least_ns * planned_link_));
}

void SpeedWatch::look() {
    if (planned_link_ <= 0) return;
    look_at_link();
    look_beside();
    look_at_sources();
}

void SpeedWatch::note_verdict() {
    if (!differs()) differs_since_ = steps_;
    verdict_++;
}

void SpeedWatch::look_at_link() {
    if (!link_due_) return;
    double sample = 0;
    const auto read = movers_.loader.meter().read(share_.device->lone_copy_ns(), &sample);
    if (read == transfer::CopyMeter::Read::not_yet) return;
    link_due_ = false;
    if (read == transfer::CopyMeter::Read::never) return;
    const double before = std::exchange(link_before_, 0);
    if (!apart(sample, planned_link_)) {
        link_differs_ = false;
        link_ = planned_link_;
        return;
    }
    link_before_ = sample;
    link_samples_.soon();
    if (apart(sample, before)) return;
    const double mean = (before + sample) / 2;
    if (link_differs_ && !apart(mean, link_)) return;
    note_verdict();
    link_differs_ = true;
    link_ = mean;
}

void SpeedWatch::look_beside() {
    const double now = movers_.loader.speed_beside();
    if (std::fabs(now - planned_beside_) <= kLinksApart * (planned_link_ + planned_beside_)) {
        beside_apart_ = 0;
        beside_differs_ = false;
    } else if (++beside_apart_ == kBesideSteps) {
        note_verdict();
        beside_differs_ = true;
    }
}

void SpeedWatch::look_at_sources() {
    if (steps_ < next_sources_) return;
    next_sources_ = steps_ + kSourceSteps;
    find_streamed_times(&times_);
    if (!policy::differ(planned_, times_)) {
        sources_differ_ = false;
        source_drift_.agrees();
    } else if (source_drift_.saw(planned_, times_) && !sources_differ_) {
        note_verdict();
        sources_differ_ = true;
    }
}

// The link is that of the plan, so that only the sources make a difference.
void SpeedWatch::find_streamed_times(std::vector<uint64_t>* out) {
    const auto units = memory_.registry.units();
    find_source_ns_per_byte(units, &source_ns_);
    out->assign(units.size(), 0);
    for (uint32_t i = 0; i < units.size(); i++) {
        if (!units[i].live || !units[i].ring_pages || !step_order_.order.contains(i)) continue;
        (*out)[i] = static_cast<uint64_t>(static_cast<double>(memory_.registry.link_bytes(i)) *
                                          std::max(1 / planned_link_, source_ns_[i]));
    }
}

void SpeedWatch::plan_changed(double link_bytes_per_ns, bool wanted) noexcept {
    if (wanted) {
        const bool follows = interval_ && steps_ - last_plan_ < 16 * interval_;
        interval_ = follows ? std::min(2 * interval_, kMostInterval) : kLeastInterval;
        last_plan_ = steps_;
        next_plan_ = steps_ + interval_;
    }
    movers_.loader.meter().stop();
    link_samples_.begin_anew();
    source_drift_.begin_anew();
    next_sources_ = steps_ + kSourceSteps;
    link_due_ = link_differs_ = sources_differ_ = beside_differs_ = false;
    link_before_ = 0;
    beside_apart_ = 0;
    verdict_++;
    planned_link_ = link_ > 0 ? link_ : share_.device->lanes().rate(transfer::Direction::to_device);
    planned_link_ = planned_link_ > 0 ? std::min(planned_link_, link_bytes_per_ns) : link_bytes_per_ns;
    planned_beside_ = link_bytes_per_ns - planned_link_;
    // Without the times, nothing is compared until the plan after this one.
    if (!no_throw([&] { return find_streamed_times(&planned_), Status(); }).ok()) planned_link_ = 0;
}

}  // namespace stagehand::core
