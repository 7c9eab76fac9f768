// CallTimes: where the time of a pause or of a resume goes, for the log.
#pragma once

#include <cstdint>
#include <string>

#include "backend/backend_device.h"
#include "core/occupancy/extent.h"
#include "core/occupancy/passage.h"

namespace stagehand::core {

// Lives as long as the call.
class CallTimes {
public:
    CallTimes(const BackendDevice& device, const ExtentTotals& totals, const Passage& passage)
        : device_(device), totals_(totals), passage_(passage), before_(totals), waited_(passage.wait_ns()) {}

    // Counts the time of `work` as time for host memory, and returns its result.
    template <class Work>
    auto for_host_memory(Work&& work) {
        return timed(&host_memory_ns_, static_cast<Work&&>(work));
    }
    // As time for the work on the device that was queued before.
    template <class Work>
    auto for_earlier_work(Work&& work) {
        return timed(&earlier_work_ns_, static_cast<Work&&>(work));
    }
    // As time for the comparison with the contents of earlier cycles.
    template <class Work>
    auto for_comparison(Work&& work) {
        return timed(&comparison_ns_, static_cast<Work&&>(work));
    }
    // Writes one line, at the level for debugging.
    void log(const std::string& device, const char* call, uint64_t ns) const;

private:
    template <class Work>
    auto timed(uint64_t* sum, Work&& work) {
        const uint64_t began = device_.now_ns();
        auto result = work();
        *sum += device_.now_ns() - began;
        return result;
    }

    const BackendDevice& device_;
    const ExtentTotals& totals_;
    const Passage& passage_;
    const ExtentTotals before_;
    const uint64_t waited_;
    uint64_t host_memory_ns_ = 0, earlier_work_ns_ = 0, comparison_ns_ = 0;
};

}  // namespace stagehand::core
