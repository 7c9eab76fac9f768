// A plan and its kinds of step in figures.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

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

void PlanInForce::tell(telemetry::JsonText& out, bool lists) const {
    if (!exists_) return;
    const auto ms = [](double ns) { return ns / 1e6; };
    const uint64_t page = parts_.page_bytes();
    const auto name = [&](const Unit& unit) {
        const Block& block = parts_.registry.block(unit.first_block);
        return block.detail && !block.detail->name.empty() ? block.detail->name : parts_.registry.name_of(block);
    };
    sh_device_caps caps = SH_DEVICE_CAPS_INIT;
    parts_.device->capabilities(&caps);
    out.add("version", 1).add("device", caps.name).add("granularity_bytes", caps.granularity_bytes);
    out.add("page_bytes", page).add("budget_bytes", parts_.device->arbiter().total_pages() * page);
    out.add("share_bytes", plan_.share_pages * page).add("link_bytes_per_second", plan_.link_bytes_per_second);
    out.add("model_bytes", parts_.registry.model_bytes()).add("resident_bytes", plan_.resident_pages * page);
    out.add("ring_bytes", plan_.ring_pages * page).add("unordered_bytes", plan_.unordered_pages * page);
    out.add("bytes_per_step", plan_.bytes_per_step).add("bound_bytes_per_step", plan_.bound_bytes_per_step);
    out.add("step_ms", ms(plan_.step_ns)).add("bound_ms", ms(plan_.bound_ns));
    out.add("compute_ms", ms(static_cast<double>(plan_.compute_ns))).add("kinds", plan_.kinds.size());
    out.add("smallest_budget_bytes", plan_.least_pages * page);
    const bool named = plan_.least_unit != kNone && parts_.registry.unit(plan_.least_unit).live;
    out.add("smallest_budget_block", named ? name(parts_.registry.unit(plan_.least_unit)) : "");
    if (!lists) return;
    std::vector<uint32_t> places(parts_.registry.units().size(), kNone);  // in the list of blocks
    uint32_t count = 0;
    out.begin_array("blocks");
    for (const Unit& unit : parts_.registry.units()) {
        if (!unit.live) continue;
        places[parts_.registry.index_of(unit)] = count++;
        const bool planned = unit.memory == Memory::planned;
        const uint64_t own = planned ? std::min<uint64_t>(unit.bytes, unit.own.size() * page) : 0;
        const uint64_t streamed = planned ? std::min(unit.bytes - own, unit.ring_pages * page) : 0;
        out.begin_object().add("name", name(unit)).add("bytes", unit.bytes);
        out.add("resident_bytes", own).add("streamed_bytes", streamed);
        if (unit.block_count > 1) out.add("packed", unit.block_count);
        if (!planned) out.add("unordered", true);
        out.end_object();
    }
    out.end_array().begin_array("uses");
    for (const Order::Entry& entry : parts_.order.entries()) {
        if (places[entry.unit] == kNone) continue;
        out.begin_object()
            .add("block", places[entry.unit])
            .add("compute_ms", ms(static_cast<double>(entry.compute_ns)));
        out.end_object();
    }
    out.end_array();
}

}  // namespace stagehand::core
