#include "transfer/carrier/copy_meter.h"

#include <algorithm>

namespace stagehand::transfer {
namespace {

constexpr uint32_t kFewest = 3;  // copies whose speed says anything

}  // namespace

CopyMeter::CopyMeter(BackendDevice& device) {
    timed_.reserve(kMost);
    for (uint32_t i = 0; i < kMost; i++) timed_.push_back({TimedSpan(device)});
}

void CopyMeter::start(uint64_t least_bytes) {
    stride_ = std::max<uint64_t>(passed_ / kMost, 1);
    least_bytes_ = least_bytes;
    passed_ = count_ = 0;
    running_ = true;
}

bool CopyMeter::begin(sh_stream stream, uint64_t bytes) {
    if (!running_ || bytes < least_bytes_ || passed_++ % stride_ != 0 || count_ == kMost) return false;
    Timed& timed = timed_[count_];
    timed.bytes = bytes;
    return timed.span.begin(stream).ok();
}

void CopyMeter::end(sh_stream stream) {
    if (timed_[count_].span.end(stream).ok()) count_++;
}

CopyMeter::Read CopyMeter::read(uint64_t lone_copy_ns, double* bytes_per_ns) {
    double speeds[kMost];
    for (uint32_t i = count_; i-- > 0;) {  // the newest one ends last
        const Timed& timed = timed_[i];
        bool ended = false;
        if (!timed.span.has_ended(&ended).ok()) return Read::never;
        if (!ended) return Read::not_yet;
        int64_t took = 0;
        if (!timed.span.read(&took).ok()) return Read::never;
        const int64_t ns = took - static_cast<int64_t>(lone_copy_ns);
        if (ns <= took / 2) return Read::never;
        speeds[i] = static_cast<double>(timed.bytes) / static_cast<double>(ns);
    }
    if (count_ < kFewest) return Read::never;
    std::nth_element(speeds, speeds + count_ / 2, speeds + count_);
    *bytes_per_ns = speeds[count_ / 2];
    return Read::yes;
}

}  // namespace stagehand::transfer
