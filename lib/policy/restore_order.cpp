#include "policy/restore_order.h"

#include <utility>

namespace stagehand::policy {

uint32_t RestoreOrder::save() {
    undone_ = kNowhere;  // it is newer than all others
    return saved_++;
}

void RestoreOrder::visit_all_again() {
    done_places_ = 0;
    undone_ = kNowhere;
}

void RestoreOrder::restore(uint32_t number, uint64_t time) {
    if (number >= saved_ || is_restored(number)) return;
    if (restored_.size() < saved_) restored_.resize(saved_);
    seen_times_.resize(seen_.size());  // after an earlier call that failed half-way
    seen_times_.push_back(time);
    seen_.push_back(number);
    restored_[number] = true;
    if (const uint32_t at = place(number); at != kNowhere) next_ = at + 1;
    // Numbers above are restored already, or were passed over: a backward that skips a branch does not come back.
    newest_left_ = std::min(newest_left_, number);
}

void RestoreOrder::end_step() {
    if (!seen_.empty()) {
        std::swap(order_, seen_);
        std::swap(times_, seen_times_);
        places_.assign(saved_, kNowhere);
        for (uint32_t at = 0; at < order_.size(); at++) places_[order_[at]] = at;
    }
    seen_.clear();
    seen_times_.clear();
    restored_.clear();
    next_ = saved_ = 0;
    newest_left_ = kNowhere;
    visit_all_again();
}

}  // namespace stagehand::policy
