#include "core/spill/trust.h"

#include <algorithm>

#include "base/once_more.h"

namespace stagehand::core {

Trust::~Trust() {
    if (passed_) (void)once_more([&] { return device_.event_destroy(passed_); }).ok();
}

uint64_t Trust::queued(bool helped) {
    last_++;
    if (helped) last_helped_ = last_;
    return last_;
}

bool Trust::has_ended(uint64_t number) {
    if (number > right_) {
        (void)lane_.check().ok();
        note_losses();
        if (!is_lost(number)) right_ = number;
    }
    return !is_lost(number);
}

void Trust::look() {
    if (passing_) {
        uint32_t done = 0;
        if (!device_.event_query(passed_, &done).ok() || !done) return;
        (void)has_ended(passing_);
        passing_ = 0;
    }
    if (lane_.helped() && last_helped_ > right_ && lane_.record(passed_).ok()) passing_ = last_;
}

// Nobody knows which of the copies that were not checked a helper has copied right.
void Trust::note_losses() {
    if (lane_.distrusted() == distrusted_) return;
    distrusted_ = lane_.distrusted();
    const Range lost = {ranges_ ? std::max(right_, lost_[ranges_ - 1].until) : right_, last_};
    if (lost.after < last_helped_) losses_ = true;
    if (ranges_ < kMostRanges)
        lost_[ranges_++] = lost;
    else
        lost_.back().until = last_;
    // Buffers may be used again when the helper does not write them any more.
    (void)lane_.synchronize().ok();
    (void)lane_.end_doubt().ok();
}

bool Trust::is_lost(uint64_t number) const {
    return std::any_of(lost_.begin(), lost_.begin() + static_cast<ptrdiff_t>(ranges_),
                       [&](const Range& range) { return number > range.after && number <= range.until; });
}

bool Trust::take_losses() {
    const bool any = losses_;
    losses_ = false;
    return any;
}

}  // namespace stagehand::core
