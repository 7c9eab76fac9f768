// The kinds of step of a runtime, for its callers.
#include <algorithm>
#include <cmath>

#include "core/runtime/plan_in_force.h"

namespace stagehand::core {

uint64_t PlanInForce::list_kinds(std::span<sh_kind_info* const> out) const {
    const StepMix& mix = watch_.planned();
    const bool has_times = exists_ && plan_.kinds.size() == mix.kinds.size();
    uint64_t count = 0;
    for (uint32_t number = 0; number < Kinds::kMost; number++) {
        const Kinds::Kind& kind = watch_.kinds().all()[number];
        if (!kind.live) continue;
        if (count++ >= out.size()) continue;
        sh_kind_info& info = *out[count - 1];
        const uint32_t size = info.struct_size;
        info = {};
        info.struct_size = size;
        kind.name.copy(info.name, sizeof info.name - 1);
        info.steps = kind.steps;
        if (kind.has_times)
            for (const Order::Entry& entry : kind.entries) info.compute_ns += entry.compute_ns;
        const auto place = std::ranges::find(mix.kinds, kind.serial);
        if (!has_times || place == mix.kinds.end()) continue;
        const size_t at = static_cast<size_t>(place - mix.kinds.begin());
        info.planned = 1;
        info.weight_ppm = static_cast<uint64_t>(std::llround(mix.weight(at) * 1e6));
        info.step_ns = static_cast<uint64_t>(plan_.kinds[at].step_ns);
        info.bound_ns = static_cast<uint64_t>(plan_.kinds[at].bound_ns);
        info.alone_ns = static_cast<uint64_t>(plan_.kinds[at].alone_ns);
    }
    return count;
}

}  // namespace stagehand::core
