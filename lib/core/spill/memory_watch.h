// MemoryWatch: how much of the device's memory is in use, and how many saved bytes may therefore stay, be on their way,
// or come back ahead of use.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/spill/copies.h"
#include "policy/watermarks.h"

namespace stagehand::core {

// The spiller's mutex guards it.
class MemoryWatch {
public:
    MemoryWatch(BackendDevice& device, const Copies& copies, const policy::KeepLimits& limits)
        : device_(device), copies_(copies), watermarks_(limits) {}

    void begin_step() { peak_ = step_peak_ = 0; }
    // What the engine tells of a save: the bytes in use, or 0 if it does not know.
    Status saw_save(uint64_t told) {
        used_ = told;
        if (!told && watermarks_.limits().watches_use()) {
            uint64_t free = 0, total = 0;
            SH_TRY(device_.memory_info(&free, &total));
            used_ = total - free;
        }
        peak_ = std::max(peak_, used_);
        step_peak_ = std::max(step_peak_, used_);
        return Status();
    }
    void saw_backward(uint64_t told) {
        used_ = told;
        if (!prefetches_) peak_ = std::max(peak_, told);
    }
    void prefetched(uint64_t bytes) {
        prefetched_bytes_ += bytes;
        prefetches_++;
    }
    void prefetch_ends(uint64_t bytes) {
        prefetched_bytes_ -= bytes;
        prefetches_--;
    }

    policy::MemoryInUse now() const {
        return {used_, copies_.bytes().leaving, copies_.bytes().kept, prefetched_bytes_, peak_};
    }
    policy::Excess excess() { return watermarks_.look(now()); }
    uint64_t may_be_leaving(uint64_t bound) const { return watermarks_.may_be_leaving(now(), bound); }
    uint64_t may_be_ahead(uint64_t bound) const { return watermarks_.may_be_ahead(now(), bound); }
    uint64_t prefetched_bytes() const { return prefetched_bytes_; }  // that no restore has taken yet
    uint32_t prefetches() const { return prefetches_; }
    uint64_t step_peak() const { return step_peak_; }

private:
    BackendDevice& device_;
    const Copies& copies_;
    policy::Watermarks watermarks_;
    uint64_t used_ = 0;       // as far as the last call told
    uint64_t peak_ = 0;       // the most of it in this step, before anything came back
    uint64_t step_peak_ = 0;  // the most of it at a save of this step
    uint64_t prefetched_bytes_ = 0;
    uint32_t prefetches_ = 0;
};

}  // namespace stagehand::core
