// ComputeWatch: has some steps measured as long as the runtime lives, and finds out whether a plan for the times that
// were measured is worth the change.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "core/plan/planner.h"
#include "core/runtime/parts.h"
#include "policy/compute_drift.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class ComputeWatch {
public:
    explicit ComputeWatch(Parts& parts) : parts_(parts) {}

    // The engine has given the times of the order, or not. Times that it gave are not measured.
    void trust_times(bool given) { trusted_ = given; }

    void step_begins(const Planner::Result& plan);
    void step_ends() { parts_.meter.end_sample(); }
    // Reads a sample whose events are done. If a plan for other times is worth its cost, it writes these times into the
    // order and returns true. The order must be known, and `plan` in force.
    Status look(Planner& planner, const Planner::Limits& limits, const Planner::Result& plan, bool* out_changed);
    // Another plan is in force. It took so long to put it into force.
    void plan_changed(uint64_t took_ns);

private:
    // What a plan for other times would bring.
    struct Offer {
        std::vector<uint64_t> times;
        double now_ns = 0, then_ns = 0;  // the length of a step with the present plan, and with the new one
        double cost_ns = 0;

        double gain_ns() const { return now_ns - then_ns; }
    };

    Status make_offer(Planner& planner, const Planner::Limits& limits, const Planner::Result& plan);
    bool is_worth_it() const;

    Parts& parts_;
    policy::ComputeDrift drift_;
    Offer offer_;  // the last one
    uint64_t change_ns_ = 0;
    bool trusted_ = false;
};

}  // namespace stagehand::core
