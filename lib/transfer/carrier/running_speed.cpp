#include "transfer/carrier/running_speed.h"

#include <algorithm>

namespace stagehand::transfer {

void RunningSpeed::start(double bytes_per_ns, uint64_t lone_copy_ns, uint64_t least_bytes) {
    speed_ = bytes_per_ns;
    samples_ = bytes_per_ns > 0 ? 1 : 0;
    lone_copy_ns_ = lone_copy_ns;
    least_bytes_ = least_bytes;
    passed_ = 0;
    meter_.start(least_bytes);
}

void RunningSpeed::look() {
    if (passed_ < copies_) return;
    double sample = 0;
    const CopyMeter::Read read = meter_.read(lone_copy_ns_, &sample);
    if (read == CopyMeter::Read::not_yet) return;
    if (read == CopyMeter::Read::yes) {
        samples_ = std::min(samples_ + 1, 4.0);
        speed_ += (sample - speed_) / samples_;
    }
    passed_ = 0;
    meter_.start(least_bytes_);
}

}  // namespace stagehand::transfer
