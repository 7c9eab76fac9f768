// When every copy and compute of a plan happens: the recurrence
//   f_j = max(f_{j-1}, end of the last use of each page that copy j overwrites) + time of copy j
//   e_i = max(e_{i-1}, f of the last copy for use i) + compute of use i
// run over several steps of the real trace, so that the seam between steps counts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "policy/plan.h"
#include "policy/programme.h"

namespace stagehand::policy {

// Times in ns since the first copy could start, with an empty ring.
struct UseTimes {
    uint32_t copies = 0;
    double load_start = 0;  // of the first copy, after its fence; without copies: both are compute_start
    double load_end = 0;
    double compute_start = 0;
    double compute_end = 0;
};

struct Simulation {
    double step_ns = 0;   // the steady period; not periodic within the limit: the mean of the later steps
    double stall_ns = 0;  // of that, what the compute waits for copies
    uint64_t bytes_per_step = 0;  // of a steady step
    uint32_t steps = 0;           // simulated
    bool periodic = false;
    std::vector<UseTimes> last_step;
};

// Runs at most `steps` steps (at least 2), fewer once the pattern repeats. Nothing if the plan cannot run: it
// does not cover the units' pages, a part exceeds the ring, or goes round its end where it must not, or two units held
// together share a page of it.
std::optional<Simulation> simulate(const Problem& problem, const Plan& plan, uint32_t steps);

// The recurrence itself, one step a call. Starts with nothing copied and nothing computed.
class StepClock {
public:
    explicit StepClock(std::span<const Use> trace);

    void restart();
    void step(const StepProgramme& programme, UseTimes* times = nullptr);  // times: one entry for each use

    double end() const { return ends_.back(); }
    double last_step_ns() const { return end() - before_; }

    // True if this step's times are those of the step before, shifted: then so are all that follow. Call it
    // after each step that runs the steady programme.
    bool repeats();
    // The steady period; as long as nothing repeats, the mean of the steps since the last power of two.
    double period_ns() const;

private:
    std::span<const Use> trace_;
    std::vector<double> ends_;  // compute ends of the step before and of this one
    double copied_ = 0;         // end of the last copy
    double copied_before_ = 0;  // the same, a step ago
    double before_ = 0;         // end of the step before
    bool repeats_ = false;
    uint32_t asked_ = 0;   // calls of repeats()
    uint32_t marked_ = 0;  // how many of them when `mark_` was taken
    double mark_ = 0;
};

}  // namespace stagehand::policy
