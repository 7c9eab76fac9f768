// TimeDrift: notices that the uses of a step, or the copies for it, take other times than the plan was made for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace stagehand::policy {

// Whether two steps have clearly different times: their sums are more than a tenth apart, or their uses are more
// than 30 % apart on average. The uses of two steps with a noise of 20 % are 13 % apart.
bool differ(std::span<const uint64_t> one, std::span<const uint64_t> other);

// Some steps are measured: a sample. The next step is measured, too, if a sample differs from the plan. Times count as
// changed if two samples in a row agree with each other and differ from the plan. So an engine that alternates between
// two kinds of step gets no new plan from here.
class TimeDrift {
public:
    // A step begins. True if it is to be measured. `uses` and `step_ns` are the plan's: measuring takes 0.15 %
    // of the time at most.
    bool begin_step(uint64_t uses, double step_ns);
    // The times of a sample. `planned` are the times that the plan was made for. Returns true if the times have
    // changed. changed() has them then.
    bool saw(std::span<const uint64_t> planned, std::vector<uint64_t> times);
    // The mean of the two samples that agree.
    const std::vector<uint64_t>& changed() const { return changed_; }
    // A sample agrees with the plan.
    void agrees() { before_.clear(); }
    // The next step is to be measured, too.
    void soon() { next_ = steps_ + 1; }
    // Another plan or order is in force.
    void begin_anew();

private:
    std::vector<uint64_t> before_;  // the sample before, if it differs from the plan
    std::vector<uint64_t> changed_;
    uint64_t steps_ = 0;
    uint64_t next_ = 0;  // the step to measure
    uint32_t chance_ = 0;
};

}  // namespace stagehand::policy
