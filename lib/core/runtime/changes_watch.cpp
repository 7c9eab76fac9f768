#include "core/runtime/changes_watch.h"

#include <algorithm>

namespace stagehand::core {

std::vector<bool> ChangesWatch::units() const {
    std::vector<bool> changing;
    if (!changes_.any()) return changing;
    const auto units = registry_.units();
    changing.resize(units.size());
    for (size_t i = 0; i < units.size(); i++) changing[i] = units[i].live && changes_.recur(units[i], counts_on(i));
    return changing;
}

// Write-backs need room beside the loads. A few do not. An engine that changes its ways often is followed more and more
// rarely.
void ChangesWatch::look() {
    constexpr uint64_t kPart = 8;
    constexpr uint32_t kLeastInterval = 8, kMostInterval = 1024;  // steps from one plan to the next
    if (wait_) wait_--;
    if (differ_ || wait_ || (!changes_.any() && planned_.empty())) return;
    struct Pages {
        uint64_t all = 0, other = 0;
        bool differ() const { return other && other * kPart >= all; }
    } streamed, whole;
    const auto units = registry_.units();
    for (size_t i = 0; i < units.size(); i++) {
        if (units[i].memory != Memory::planned) continue;
        const bool planned = counts_on(i), other = changes_.recur(units[i], planned) != planned;
        streamed.all += units[i].ring_pages;
        whole.all += units[i].pages;
        streamed.other += other ? units[i].ring_pages : 0;
        whole.other += other ? units[i].pages : 0;
    }
    differ_ = streamed.all && (streamed.differ() || whole.differ());
    if (!differ_) return;
    interval_ = std::clamp(2 * interval_, kLeastInterval, kMostInterval);
    wait_ = interval_;
}

}  // namespace stagehand::core
