#include "core/runtime/plan_figures.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/device/device.h"

namespace stagehand::core {

void PlanFigures::describe(const PlanResult& result, sh_plan_info* out) const {
    const uint32_t size = out->struct_size;
    const uint64_t page = share_.page_bytes();
    *out = {};
    out->struct_size = size;
    out->max_held = max_held_;
    out->model_bytes = memory_.registry.model_bytes();
    out->budget_bytes = result.share_pages * page;
    out->resident_bytes = result.resident_pages * page;
    out->ring_bytes = result.ring_pages * page;
    out->unordered_bytes = result.unordered_pages * page;
    out->smallest_budget_bytes = result.least_pages * page;
    if (result.least_unit != kNone && memory_.registry.unit(result.least_unit).live)
        out->smallest_budget_block = memory_.registry.block(memory_.registry.unit(result.least_unit).first_block).id;
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
    out->padding_bytes = memory_.registry.padding_bytes();
    out->packed_resident_bytes = result.unpack.kept_pages * page;
    out->unpack_bytes = result.unpack.pages * page;
    out->unpack_bytes_per_second = result.unpack_bytes_per_second;
}

uint64_t PlanFigures::list_kinds(std::span<sh_kind_info* const> out) const {
    uint64_t count = 0;
    for (const Kind& kind : plan_.watch().kinds().all()) {
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
    }
    return count;
}

void PlanFigures::tell(telemetry::JsonText& out, bool lists) const {
    if (!plan_.exists()) return;
    const PlanResult& result = plan_.result();
    const auto ms = [](double ns) { return ns / 1e6; };
    const uint64_t page = share_.page_bytes();
    const auto name = [&](const Unit& unit) {
        const Block& block = memory_.registry.block(unit.first_block);
        return block.detail && !block.detail->name.empty() ? block.detail->name : memory_.registry.name_of(block);
    };
    auto caps = sh_sized<sh_device_caps>();
    share_.device->capabilities(&caps);
    out.add("version", 1).add("device", caps.name).add("granularity_bytes", caps.granularity_bytes);
    out.add("page_bytes", page).add("budget_bytes", share_.arbiter().total_pages() * page);
    out.add("share_bytes", result.share_pages * page).add("link_bytes_per_second", result.link_bytes_per_second);
    out.add("model_bytes", memory_.registry.model_bytes()).add("resident_bytes", result.resident_pages * page);
    out.add("ring_bytes", result.ring_pages * page).add("unordered_bytes", result.unordered_pages * page);
    out.add("packed_resident_bytes", result.unpack.kept_pages * page);
    out.add("unpack_bytes", result.unpack.pages * page);
    out.add("bytes_per_step", result.bytes_per_step).add("bound_bytes_per_step", result.bound_bytes_per_step);
    out.add("step_ms", ms(result.step_ns)).add("bound_ms", ms(result.bound_ns));
    out.add("compute_ms", ms(static_cast<double>(result.compute_ns))).add("orders", result.orders);
    out.add("smallest_budget_bytes", result.least_pages * page);
    const bool named = result.least_unit != kNone && memory_.registry.unit(result.least_unit).live;
    out.add("smallest_budget_block", named ? name(memory_.registry.unit(result.least_unit)) : "");
    if (!lists) return;
    std::vector<uint32_t> places(memory_.registry.units().size(), kNone);  // in the list of blocks
    uint32_t count = 0;
    out.begin_array("blocks");
    for (const Unit& unit : memory_.registry.units()) {
        if (!unit.live || unit.is_pool()) continue;  // members are listed themselves
        places[memory_.registry.index_of(unit)] = count++;
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
    for (const Order::Entry& entry : step_order_.order.followed().entries()) {
        if (places[entry.unit] == kNone) continue;
        out.begin_object()
            .add("block", places[entry.unit])
            .add("compute_ms", ms(static_cast<double>(entry.compute_ns)));
        out.end_object();
    }
    out.end_array();
}

void PlanFigures::stats(sh_runtime_stats* out) const {
    const uint32_t size = out->struct_size;
    *out = gate_.stats();
    out->struct_size = size;
    const PlanResult& result = plan_.result();
    out->resident_bytes = result.resident_pages * share_.page_bytes();
    out->ring_bytes = uint64_t(result.ring_pages) * share_.page_bytes();
    out->unordered_bytes = result.unordered_pages * share_.page_bytes();
    out->held_bytes = memory_.placement.pages() * share_.page_bytes();
    const Standing standing = share_.standing();
    out->share_bytes = standing.share * share_.page_bytes();
    out->protected_bytes = standing.kept * share_.page_bytes();
    out->reserved_bytes = standing.reserved * share_.page_bytes();
    out->guest_bytes = standing.guest * share_.page_bytes();
}

}  // namespace stagehand::core
