#include "policy/departures.h"

#include <algorithm>

namespace stagehand::policy {

void Departures::begin_step() { left_ = saved_peak_ = remaining_peak_ = 0; }

void Departures::saw(const MemoryInUse& now, uint64_t away) {
    saved_peak_ = std::max(saved_peak_, now.kept + now.leaving + away);
    remaining_peak_ = std::max(remaining_peak_, above(now.used, now.leaving));
}

void Departures::end_step() {
    if (!saved_peak_) return;
    uint64_t next = limits_.bounds_kept() ? above(saved_peak_, limits_.keep_bytes) : 0;
    // Use that stayed below the low mark shows that fewer bytes would have been enough.
    if (limits_.watches_use()) next = std::max(next, above(left_, above(limits_.low_bytes, remaining_peak_)));
    foreseen_ = next;
    begin_step();
}

}  // namespace stagehand::policy
