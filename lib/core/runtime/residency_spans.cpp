#include "core/runtime/residency_spans.h"

#include <algorithm>
#include <utility>

namespace stagehand::core {

void ResidencySpans::begin(telemetry::Residency how) {
    uint64_t& since = since_ns_[static_cast<size_t>(how)];
    if (!since) since = std::max<uint64_t>(1, memory_.device.now_ns());
}

void ResidencySpans::end(telemetry::Residency how, uint64_t bytes) {
    const uint64_t since = std::exchange(since_ns_[static_cast<size_t>(how)], 0);
    if (since && telemetry::trace_on())
        telemetry::trace_residency(gate_.name().c_str(), how, since, memory_.device.now_ns(), bytes);
}

}  // namespace stagehand::core
