#include "sim/link.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace stagehand::sim {

uint64_t Links::copy(Direction direction, uint64_t now_ns, uint64_t ready_ns, uint64_t bytes) {
    for (Busy& busy : busy_) {
        while (!busy.empty() && busy.begin()->second <= now_ns) busy.erase(busy.begin());
    }
    Busy& mine = busy_[static_cast<int>(direction)];
    const Busy& other = busy_[1 - static_cast<int>(direction)];
    uint64_t start_ns = ready_ns, end_ns = end_of_copy(other, start_ns, bytes);
    auto next = mine.upper_bound(ready_ns);
    if (next != mine.begin()) --next;
    for (; next != mine.end() && next->first < end_ns; ++next) {
        if (next->second <= start_ns) continue;
        start_ns = next->second;
        end_ns = end_of_copy(other, start_ns, bytes);
    }
    if (end_ns == start_ns) return end_ns;
    auto here = mine.emplace(start_ns, end_ns).first;
    if (next != mine.end() && next->first == end_ns) {
        here->second = next->second;
        mine.erase(next);
    }
    if (here != mine.begin() && std::prev(here)->second == start_ns) {
        std::prev(here)->second = here->second;
        mine.erase(here);
    }
    return end_ns;
}

uint64_t Links::end_of_copy(const Busy& other, uint64_t start_ns, uint64_t bytes) const {
    const double ns_per_byte = start_ns < later_from_ns_ ? ns_per_byte_ : later_ns_per_byte_;
    start_ns += latency_ns_;
    double left_ns = static_cast<double>(bytes) * ns_per_byte;  // at full speed
    double at = static_cast<double>(start_ns);
    if (left_ >= 1) return start_ns + static_cast<uint64_t>(std::llround(left_ns));
    auto beside = other.upper_bound(start_ns);
    if (beside != other.begin()) --beside;
    for (; beside != other.end(); ++beside) {
        const double begin = static_cast<double>(beside->first), end = static_cast<double>(beside->second);
        if (end <= at) continue;
        const double alone = std::max(0.0, begin - at);
        if (alone >= left_ns) break;
        at += alone;
        left_ns -= alone;
        const double shared = (end - at) * left_;
        if (shared >= left_ns) return static_cast<uint64_t>(std::llround(at + left_ns / left_));
        at = end;
        left_ns -= shared;
    }
    return static_cast<uint64_t>(std::llround(at + left_ns));
}

}  // namespace stagehand::sim
