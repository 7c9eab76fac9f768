// StepRate: how often a model steps, and when its next step is expected.
#pragma once

#include <cstdint>

namespace stagehand::policy {

class StepRate {
public:
    void note_step(uint64_t now_ns);
    // The time until the next step. A model that is not late is expected at its usual interval. A model that is late is
    // expected after as long again as it has been away. Infinite before the first step.
    double next_step_ns(uint64_t now_ns) const;
    // A model that is away longer than usual is used less often than before. 0 before the second step.
    double per_second(uint64_t now_ns) const;
    // As above if the rate is known. The rate of a model with only one step counts as high as `busiest` at first, and
    // lower the longer the model is away.
    double per_second(uint64_t now_ns, double busiest) const;

private:
    double away_ns(uint64_t now_ns) const;

    uint64_t last_step_ns_ = 0;
    double period_ns_ = 0;  // smoothed time between steps; 0: fewer than two steps so far
    bool stepped_ = false;
};

}  // namespace stagehand::policy
