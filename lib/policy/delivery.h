// Delivery: how fast a source has delivered its bytes.
#pragma once

#include <algorithm>
#include <cstdint>

namespace stagehand::policy {

// The median of the last three loads. So one load that met a busy disk counts for nothing, and two do.
class Delivery {
public:
    void saw(double ns_per_byte) {
        last_[next_] = static_cast<float>(ns_per_byte);
        next_ = static_cast<uint8_t>((next_ + 1) % 3);
        count_ = static_cast<uint8_t>(std::min(count_ + 1, 3));
    }
    // 0: no load has shown it.
    double ns_per_byte() const {
        if (count_ < 3) return count_ ? last_[(next_ + 2) % 3] : 0;
        return std::max(std::min(last_[0], last_[1]), std::min(std::max(last_[0], last_[1]), last_[2]));
    }

private:
    float last_[3] = {};
    uint8_t next_ = 0, count_ = 0;
};

}  // namespace stagehand::policy
