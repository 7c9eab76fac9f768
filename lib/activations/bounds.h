// Lower bounds on what any choice of fates can reach. Plans are measured against them.
#pragma once

#include <cstdint>
#include <vector>

#include "activations/plan.h"
#include "activations/timeline.h"

namespace stagehand::activations {

// A pair of ways to move bytes off the device: over the link, or by computing them again.
struct AwayBytes {
    double spilled = 0;
    double recomputed = 0;
};

class ActivationBounds {
public:
    explicit ActivationBounds(const ActivationTimeline& timeline);

    // No choice whose peak is at most `target_bytes` has a shorter step. Infinite if there is no such choice.
    double least_step_ns(uint64_t target_bytes) const;
    // No choice whose step takes at most `target_ns` has a lower peak.
    uint64_t least_peak(double target_ns) const;

    // The bytes that a fractional choice would spill and recompute at the event that decides the bound.
    AwayBytes split(uint64_t target_bytes) const;

private:
    // An event, and the cost of having bytes away from the device just after the event.
    struct Instant {
        int64_t level = 0;                // bytes on the device if everything is kept
        double spillable = 0;             // bytes
        double eligible = 0;              // bytes that can be away in one way or the other
        double out_rate = 1, out_ns = 0;  // x bytes delay the event by x / out_rate - out_ns
        double in_rate = 1, in_ns = 0;    // x bytes delay the end, from the event on, by x / in_rate - in_ns
        // The cheapest recomputes, summed up: point 0 is the origin.
        std::vector<double> recompute_bytes, recompute_ns;

        double least_extra_ns(double away, AwayBytes* best = nullptr) const;
        double extra_ns(double spilled, double recomputed) const;
        double recompute_time(double bytes) const;
    };

    Instant at(uint32_t place, int64_t level) const;
    void find_out_limit(uint32_t place, Instant& instant) const;
    void find_in_limit(uint32_t place, Instant& instant) const;
    bool away_at(uint32_t place, uint32_t storage) const;

    const ActivationTimeline& timeline_;
    std::vector<uint32_t> by_first_use_, by_recompute_cost_;
    std::vector<Instant> instants_;
    int64_t least_level_ = 0;  // of all events: the bytes that can never be away
};

}  // namespace stagehand::activations
