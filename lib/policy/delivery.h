// Delivery: how fast a source has delivered its bytes.
#pragma once

#include <algorithm>
#include <cstdint>

namespace stagehand::policy {

// The first load does not count, because it may have met files that were not in memory yet. Of the loads after it, the
// fastest one counts, and of three or more the median of the last three. So a load that met a busy disk counts for
// nothing, and two do.
class Delivery {
public:
    void saw(double ns_per_byte) {
        if (first_ == 0) {
            first_ = static_cast<float>(ns_per_byte);
            return;
        }
        last_[next_] = static_cast<float>(ns_per_byte);
        next_ = static_cast<uint8_t>((next_ + 1) % 3);
        count_ = static_cast<uint8_t>(std::min(count_ + 1, 3));
    }
    float first() const { return first_; }  // 0: there was none
    // 0: not known.
    float ns_per_byte() const {
        if (count_ < 3) return count_ == 2 ? std::min(last_[0], last_[1]) : last_[0];
        return std::max(std::min(last_[0], last_[1]), std::min(std::max(last_[0], last_[1]), last_[2]));
    }

private:
    float first_ = 0, last_[3] = {};
    uint8_t next_ = 0, count_ = 0;
};

}  // namespace stagehand::policy
