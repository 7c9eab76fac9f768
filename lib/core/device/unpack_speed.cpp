// The measurement of unpacking. It is done once, when a runtime has packed tensors that the device could unpack.
#include <algorithm>

#include "base/log.h"
#include "core/device/page_loan.h"
#include "core/device/unpack_memory.h"

namespace stagehand::core {

Status Device::measure_unpacking(uint64_t most_pages) {
    std::lock_guard lock(mutex_);  // only one caller measures at a time
    if (!backend_->unpacks() || unpacks_not_ || unpack_ns_per_byte_ > 0) return Status();
    const uint64_t pages = UnpackMemory::pages_for(std::min(most_pages, arbiter_.pages_to_hold()), page_bytes());
    const PageLoan loan(*this, pages, pages);
    if (!loan.pages()) return Status();  // another time
    transfer::StraightCarrier carrier(*backend_);
    UnpackMemory memory(*backend_, pool_, lanes_, carrier);
    double rate = 0;
    UnpackPlan plan;
    plan.pages = pages;
    Status status = memory.take(plan);
    if (status.ok()) status = memory.unpacker().measure(&rate);
    const Status freed = memory.free();
    if (status.code() == SH_ERROR_UNSUPPORTED) {
        unpacks_not_ = true;
        log_line(SH_LOG_INFO, "%s: the host unpacks packed weights: %s", name_.c_str(), status.text());
        return freed;
    }
    if (status.code() == SH_ERROR_OUT_OF_DEVICE_MEMORY) return freed;
    SH_TRY(status);
    if (rate > 0) unpack_ns_per_byte_ = 1 / rate;
    return freed;
}

}  // namespace stagehand::core
