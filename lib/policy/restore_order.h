// RestoreOrder: foresees in which order the saved tensors of a step are restored, and when.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace stagehand::policy {

// Tensors are numbered in the order of saving, from 0 in each step. A step whose numbers mean other tensors than those
// of the step before costs prefetches that come too late, never a wrong result.
class RestoreOrder {
public:
    // Returns the number of the tensor that is saved now.
    uint32_t save();
    // The first restore of a tensor in a step is its place in the order. Later ones are not. `time` is that since the
    // step began, in units of the caller.
    void restore(uint32_t number, uint64_t time = 0);
    // Ends a step. A step without restores (a validation) leaves the order as it was.
    void end_step();

    // What for_each_next() is told of a tensor.
    enum class Visited : uint8_t {
        done,  // it needs no further visit
        again,
        stop  // it needs a further visit, and no other one is made now
    };

    // Calls visit(number) for the tensors that come next, soonest first: those that followed in the last step, then the
    // other saved ones, the newest first. Tensors that were restored in this step are left out. Those that are done
    // before all others are not visited again, so that many calls in a step cost one walk.
    template <class Visit>
    void for_each_next(Visit&& visit);
    // Tensors that were done need a visit again.
    void visit_all_again();

    // The time at which the last step restored a tensor. 0 if it did not.
    uint64_t time_of(uint32_t number) const {
        const uint32_t at = place(number);
        return at == kNowhere ? 0 : times_[at];
    }

    uint32_t saved() const { return saved_; }

private:
    static constexpr uint32_t kNowhere = UINT32_MAX;

    bool is_restored(uint32_t number) const { return number < restored_.size() && restored_[number]; }
    uint32_t place(uint32_t number) const { return number < places_.size() ? places_[number] : kNowhere; }

    std::vector<uint32_t> order_;   // of the last step that restored anything
    std::vector<uint32_t> places_;  // of each number in order_
    std::vector<uint64_t> times_;   // of the restores in order_
    std::vector<uint32_t> seen_;    // the order of this step so far
    std::vector<uint64_t> seen_times_;
    std::vector<bool> restored_;  // in this step
    uint32_t next_ = 0;           // place in order_ after the last restore
    uint32_t saved_ = 0;
    uint32_t newest_left_ = kNowhere;  // the newest number that was not restored, or above it
    uint32_t done_places_ = 0;         // the places in order_ below this one are done
    uint32_t undone_ = kNowhere;       // the numbers from this one on are done, or have a place
};

template <class Visit>
void RestoreOrder::for_each_next(Visit&& visit) {
    bool all_done = true;
    const auto look_at = [&](uint32_t number) {
        const Visited visited = is_restored(number) ? Visited::done : visit(number);
        if (visited != Visited::done) all_done = false;
        return visited != Visited::stop;
    };
    for (uint32_t at = std::max(next_, done_places_); at < order_.size(); at++) {
        // A number that is not saved yet may be saved later in this step.
        if (order_[at] >= saved_) all_done = false;
        if (order_[at] < saved_ && !look_at(order_[at])) return;
        if (all_done) done_places_ = at + 1;
    }
    all_done = true;
    for (uint32_t number = std::min({saved_, newest_left_, undone_}); number-- > 0;) {
        if (place(number) == kNowhere && !look_at(number)) return;
        if (all_done) undone_ = number;
    }
}

}  // namespace stagehand::policy
