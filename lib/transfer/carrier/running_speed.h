// RunningSpeed: the speed of a lane, as its copies show it while it works.
#pragma once

#include <cstdint>

#include "backend/backend_device.h"
#include "transfer/carrier/copy_meter.h"

namespace stagehand::transfer {

// Some copies of each sample are timed. The speed is the mean of the first samples, and later each sample counts for a
// quarter: others use the link and host memory, too, so that one sample may be far off. Not thread-safe.
class RunningSpeed {
public:
    // A sample is read after so many copies.
    RunningSpeed(BackendDevice& device, uint64_t copies) : meter_(device), copies_(copies) {}

    // Begins anew with this speed, in bytes per nanosecond, as the first sample. 0: there is none yet. Copies of at
    // least `least_bytes` are timed, and each takes `lone_copy_ns` more than its bytes do.
    void start(double bytes_per_ns, uint64_t lone_copy_ns, uint64_t least_bytes);
    bool known() const { return speed_ > 0; }
    double bytes_per_ns() const { return speed_; }
    // For the copies that the lane makes.
    CopyMeter& meter() { return meter_; }
    void copied() { passed_++; }
    // Reads a sample that is there.
    void look();

private:
    CopyMeter meter_;
    const uint64_t copies_;
    double speed_ = 0, samples_ = 0;  // at most 4 of them
    uint64_t lone_copy_ns_ = 0, least_bytes_ = 0, passed_ = 0;
};

}  // namespace stagehand::transfer
