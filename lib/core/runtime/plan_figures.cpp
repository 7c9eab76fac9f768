// A plan and its kinds of step in figures.
#include <algorithm>
#include <cmath>

#include "core/runtime/plan_in_force.h"

namespace stagehand::core {

void PlanInForce::describe(const Planner::Result& result, sh_plan_info* out) const {
    const uint32_t size = out->struct_size;
    const uint64_t page = parts_.page_bytes();
    *out = {};
    out->struct_size = size;
    out->max_held = max_held_;
    out->model_bytes = parts_.registry.model_bytes();
    out->budget_bytes = result.share_pages * page;
    out->resident_bytes = result.resident_pages * page;
    out->ring_bytes = result.ring_pages * page;
    out->unordered_bytes = result.unordered_pages * page;
    out->smallest_budget_bytes = result.least_pages * page;
    if (result.least_unit != kNone && parts_.registry.unit(result.least_unit).live)
        out->smallest_budget_block = parts_.registry.block(parts_.registry.unit(result.least_unit).first_block).id;
    out->bytes_per_step = result.bytes_per_step;
    out->bound_bytes_per_step = result.bound_bytes_per_step;
    out->step_ns = static_cast<uint64_t>(result.step_ns);
    out->bound_ns = static_cast<uint64_t>(result.bound_ns);
    out->plan_bound_ns = static_cast<uint64_t>(result.plan_bound_ns);
    out->compute_ns = result.compute_ns;
    out->link_bytes_per_second = result.link_bytes_per_second;
    out->scheduled_blocks = result.resident_blocks + result.streamed_blocks;
    out->resident_blocks = result.resident_blocks;
    out->streamed_blocks = result.streamed_blocks;
    out->padding_bytes = parts_.registry.model_pages() * page - parts_.registry.model_bytes();
}

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
