#include "core/prefetcher.h"

#include <algorithm>

namespace stagehand::core {
namespace {

// Staged loads under way at once: enough to keep the workers busy, few enough that their order can still change.
constexpr uint32_t kQueuedLoads = 16;

}  // namespace

// Contents may be overwritten if nobody holds them, no load is bringing them, and their next use comes after this one.
bool Prefetcher::may_begin(const Unit& unit, uint64_t position) {
    const uint32_t self = static_cast<uint32_t>(&unit - registry_.units().data());
    if (unit.updating || unit.writing_back) return false;
    uint32_t last = self;
    for (uint32_t k = 0; k < unit.ring_pages; k++) {
        const uint32_t contents = ring_.page_of(unit, k).contents;
        if (contents == last || contents == kNone) continue;
        last = contents;
        if (contents == self) continue;
        const Unit& there = registry_.unit(contents);
        if (there.held || there.writing_back || there.dirty || (there.load && there.load->queued)) return false;
        if (order_.next_use(contents, order_.cursor()) < position) return false;
    }
    return true;
}

void Prefetcher::pump(uint64_t now_ns) {
    if (!order_.known()) return;
    next_ = std::max(next_, order_.cursor());
    const uint64_t horizon = order_.cursor() + order_.size();
    for (; next_ < horizon; next_++) {
        Unit& unit = registry_.unit(order_.at(next_).unit);
        if (unit.memory != Memory::planned || unit.complete()) continue;   // there, or on its way
        if (unit.held || loader_.queued() >= kQueuedLoads || !may_begin(unit, next_)) return;
        const uint64_t deadline_ns = now_ns + (next_ - order_.cursor()) * order_.mean_compute_ns();
        const bool begun = loader_.begin(unit, deadline_ns).ok();
        if (begun) continue;
        next_++;
        return;
    }
}

}  // namespace stagehand::core
