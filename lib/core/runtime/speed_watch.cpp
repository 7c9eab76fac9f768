#include "core/runtime/speed_watch.h"

#include <algorithm>
#include <utility>

#include "base/no_throw.h"

namespace stagehand::core {
namespace {

// A copy that takes less is not timed, because the events take too much of it.
constexpr double kShortestNs = 20'000;

}  // namespace

Status SpeedWatch::link(double* bytes_per_ns) const {
    if (link_ <= 0) return parts_.device->link(bytes_per_ns);
    *bytes_per_ns = link_;
    return Status();
}

void SpeedWatch::step_begins(const Planner::Result& plan) {
    parts_.loader.meter().stop();
    if (due_ || planned_link_ <= 0 || plan.bytes_per_step == 0 || !parts_.order.known()) return;
    if (!drift_.begin_step(transfer::CopyMeter::kMost, plan.step_ns)) return;
    due_ = true;
    // Each streamed block has a few copies.
    if (!parts_.device->link_is_given())
        parts_.loader.meter().start(plan.streamed_blocks / transfer::CopyMeter::kMost,
                                    static_cast<uint64_t>(kShortestNs * planned_link_));
}

void SpeedWatch::look() {
    if (!due_) return;
    double link = link_ > 0 ? link_ : planned_link_;
    if (!parts_.device->link_is_given()) {
        double sample = 0;
        const auto read = parts_.loader.meter().read(parts_.device->lone_copy_ns(), &sample);
        if (read == transfer::CopyMeter::Read::not_yet) return;
        if (read == transfer::CopyMeter::Read::yes) link = sample;
    }
    due_ = false;
    const double before = std::exchange(sampled_link_, link);
    state_times(link, &times_);
    if (drift_.saw(planned_, times_)) {
        differs_ = true;
        link_ = (before + link) / 2;
        times_ = drift_.changed();
    } else if (!policy::differ(planned_, times_)) {
        differs_ = false;
        link_ = planned_link_;
    }
}

void SpeedWatch::state_times(double link_bytes_per_ns, std::vector<uint64_t>* out) const {
    const auto units = parts_.registry.units();
    out->assign(units.size(), 0);
    for (uint32_t i = 0; i < units.size(); i++) {
        if (!units[i].live || !parts_.order.contains(i)) continue;
        const double ns_per_byte = std::max(1 / link_bytes_per_ns, units[i].delivery.ns_per_byte());
        (*out)[i] = static_cast<uint64_t>(static_cast<double>(parts_.registry.link_bytes(i)) * ns_per_byte);
    }
}

void SpeedWatch::plan_changed(double link_bytes_per_ns) noexcept {
    drift_.begin_anew();
    due_ = differs_ = false;
    parts_.loader.meter().stop();
    planned_link_ = sampled_link_ = link_bytes_per_ns;
    // Without the times, nothing is compared until the plan after this one.
    if (!no_throw([&] { return state_times(link_bytes_per_ns, &planned_), Status(); }).ok()) planned_link_ = 0;
}

}  // namespace stagehand::core
