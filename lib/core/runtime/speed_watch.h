// SpeedWatch: has some copies timed as long as the runtime lives, and finds out whether the link or the sources have
// another speed than the plan in force counts with.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "core/plan/planner.h"
#include "core/runtime/parts.h"
#include "policy/time_drift.h"

namespace stagehand::core {

// What is compared is how long a copy of each unit takes: the longer of its bytes on the link, and of what its source
// took to deliver them. The speed of the link is that of copies from pinned memory, as this runtime makes them, so a
// neighbour that shares the link counts. A speed that the engine has given is trusted. The caller holds the runtime's
// mutex in all methods.
class SpeedWatch {
public:
    explicit SpeedWatch(Parts& parts) : parts_(parts) {}

    // The speed of the link to plan with, in bytes per nanosecond: as seen last for good, else as the device has it.
    Status link(double* bytes_per_ns) const;
    void step_begins(const Planner::Result& plan);
    // Reads a sample whose events are done. May lack memory.
    void look();
    // Copies take another time than the plan in force counts with.
    bool differs() const { return differs_; }
    uint64_t stable_for() const { return drift_.steps_since(); }  // steps, if it differs
    // The times of copies, as known now. They tell whether an offer was made for the same speeds.
    const std::vector<uint64_t>& times() const { return times_; }
    // Another plan is in force, and counts with this speed of the link.
    void plan_changed(double link_bytes_per_ns) noexcept;

private:
    void state_times(double link_bytes_per_ns, std::vector<uint64_t>* out) const;

    Parts& parts_;
    policy::TimeDrift drift_;
    std::vector<uint64_t> planned_, times_;  // of a copy of each unit, in nanoseconds; 0 for units outside the order
    double planned_link_ = 0;                // bytes per nanosecond; 0: there was no plan
    double link_ = 0;                        // as seen for good; 0: as the device has it
    double sampled_link_ = 0;                // of the last sample
    bool due_ = false;                       // a sample is to be read
    bool differs_ = false;
};

}  // namespace stagehand::core
