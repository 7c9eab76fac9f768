// The times of every copy and compute of a plan, by the recurrence
//   f_j = max(f_{j-1}, g of the last use of each page that copy j overwrites) + time of copy j
//   e_i = max(e_{i-1}, f of the last copy for use i) + compute of use i
//   b_i = max(b_{i-1}, e_i) + time of the write-back that begins after use i, or b_{i-1} without one
//   g_i = max(e_i, b_i), when the pages of use i are free
// It runs over several steps of the real trace, so that the seam between steps counts.
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
    double load_start = 0;  // of the first copy, after its fence; compute_start if there are no copies
    double load_end = 0;
    double compute_start = 0;
    double compute_end = 0;
};

struct Simulation {
    double step_ns = 0;           // the steady period, or the mean of the later steps if none repeats within the limit
    double stall_ns = 0;          // the part of it in which the compute waits for copies
    uint64_t bytes_per_step = 0;  // of a steady step
    uint32_t steps = 0;           // number of simulated steps
    bool periodic = false;
    std::vector<UseTimes> last_step;
};

// Runs at most `steps` steps (at least 2), and stops once the pattern repeats. Nothing if the plan cannot run: it does
// not cover the units' pages, a part exceeds the ring, a part wraps around the ring's end although it must not, or two
// units that are held together share a ring page.
std::optional<Simulation> simulate(const Problem& problem, const Plan& plan, uint32_t steps);

// The recurrence itself, one step for each call. It starts with nothing copied and nothing computed.
class StepClock {
public:
    explicit StepClock(std::span<const Use> trace);

    void restart();
    void step(const StepProgramme& programme, UseTimes* times = nullptr);  // times: one entry for each use

    double end() const { return ends_.back(); }
    double last_step_ns() const { return end() - before_; }

    // True if this step's times are those of the step before, shifted. All later steps are then alike too. Call it
    // after each step that runs the steady programme.
    bool repeats();
    // The steady period. As long as nothing repeats, the mean of the steps since the last power of two.
    double period_ns() const;

private:
    std::span<const Use> trace_;
    std::vector<double> ends_;    // compute ends of the step before and of this step
    std::vector<double> free_;    // when their pages are free
    double copied_ = 0;           // end of the last copy
    double copied_before_ = 0;    // the end of the last copy of the step before
    double returned_ = 0;         // end of the last write-back
    double returned_before_ = 0;  // the end of the last write-back of the step before
    double before_ = 0;           // end of the step before
    bool repeats_ = false;
    uint32_t asked_ = 0;   // calls of repeats()
    uint32_t marked_ = 0;  // the number of calls when `mark_` was taken
    double mark_ = 0;
};

}  // namespace stagehand::policy
