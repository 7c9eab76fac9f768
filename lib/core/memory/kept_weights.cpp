#include "core/memory/kept_weights.h"

namespace stagehand::core {
namespace {

// Calls `visit(segment, range)` for each packed segment of the unit that has chunks beyond the first `own_bytes`.
template <typename Visit>
void for_packed_segments(Registry& registry, const Unit& unit, uint64_t own_bytes, Visit visit) {
    for (Block& block : registry.blocks_of(unit)) {
        if (!block.id) continue;
        for (transfer::Segment& segment : block.detail->segments) {
            if (!segment.packed()) continue;
            const uint64_t from = own_bytes > segment.offset ? own_bytes - segment.offset : 0;
            const transfer::ChunkRange range = transfer::chunks_from(segment.source, from);
            if (range.begin < range.end) visit(segment, range);
        }
    }
}

}  // namespace

void find_kept_bytes(Registry& registry, const Unit& unit, uint64_t own_bytes, KeptBytes* out) {
    out->assign(transfer::kKeptPeriod + 1, 0);
    for_packed_segments(registry, unit, own_bytes, [&](const transfer::Segment& segment, transfer::ChunkRange range) {
        transfer::add_by_place(segment.source, range, out->data() + 1);
    });
    for (uint32_t k = 1; k <= transfer::kKeptPeriod; k++) (*out)[k] += (*out)[k - 1];
}

bool are_kept(Registry& registry, const Unit& unit, uint64_t own_bytes, uint32_t of_period) {
    bool all = true;
    for_packed_segments(registry, unit, own_bytes, [&](const transfer::Segment& segment, transfer::ChunkRange range) {
        all = all && (of_period ? segment.kept && segment.kept->equals(range, of_period) : !segment.kept);
    });
    return all;
}

void keep(Registry& registry, Unit& unit, uint64_t own_bytes, uint32_t of_period, uint64_t* address) {
    for_packed_segments(registry, unit, own_bytes, [&](transfer::Segment& segment, transfer::ChunkRange range) {
        segment.kept = std::make_shared<transfer::KeptChunks>(segment.source, range, of_period, address);
    });
}

uint64_t kept_address(Registry& registry, const Unit& unit) {
    for (Block& block : registry.blocks_of(unit)) {
        if (!block.id) continue;
        for (const transfer::Segment& segment : block.detail->segments)
            if (segment.kept) return segment.kept->address_of(segment.kept->range().begin);
    }
    return 0;
}

void keep_none(Registry& registry) noexcept {
    for (Unit& unit : registry.units()) {
        if (!unit.live) continue;
        for (Block& block : registry.blocks_of(unit))
            if (block.id)
                for (transfer::Segment& segment : block.detail->segments) segment.kept.reset();
    }
}

}  // namespace stagehand::core
