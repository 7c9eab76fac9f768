#include "core/plan/prefetcher.h"

#include <algorithm>

#include "base/no_throw.h"

namespace stagehand::core {
namespace {

// The number of staged loads under way at once: enough to keep the workers busy, few enough that their order can still
// change.
constexpr uint32_t kQueuedLoads = 16;
// The number of entries that one call looks at. The next call looks at the rest.
constexpr uint32_t kEntriesAtOnce = 256;
// A load is begun in parts if at least this fraction of it can be begun now. It has at most two parts, because each
// copy has a cost.
constexpr uint32_t kSmallestPart = 4;

}  // namespace

// The number of the unit's first streamed pages that may be overwritten. Neither a view, nor a load, nor a change of
// the engine protects the contents of these pages, and the next use of the contents comes after this position.
uint32_t Prefetcher::free_pages(const Unit& unit, uint64_t position) const {
    const uint32_t self = memory_.registry.index_of(unit);
    uint32_t last = self;
    for (uint32_t k = 0; k < unit.ring_pages; k++) {
        const uint32_t contents = memory_.ring.page_of(unit, k).contents;
        if (contents == last || contents == kNone) continue;
        last = contents;
        if (contents == self) continue;
        if (memory_.contents.protects(memory_.registry.unit(contents)) != Obstacle::none) return k;
        if (order_.followed().next_use(contents, order_.position().cursor()) < position) return k;
    }
    return unit.ring_pages;
}

void Prefetcher::renew() noexcept {
    restart();
    cold_until_ = order_.known() ? order_.position().cursor() + order_.followed().size() : 0;
    streamed_.clear();
    const Status status = no_throw([&] {
        for (size_t i = 0; i < order_.followed().entries().size(); i++)
            if (memory_.registry.unit(order_.followed().entries()[i].unit).ring_pages)
                streamed_.push_back(static_cast<uint32_t>(i));
        return Status();
    });
    if (!status.ok()) streamed_.clear();  // without host memory for the entries nothing is loaded ahead
}

// The first position from here on whose unit may have something to load.
uint64_t Prefetcher::next_candidate(uint64_t position) const {
    if (position < cold_until_) return position;
    if (streamed_.empty()) return UINT64_MAX;
    const uint64_t lap = position / order_.followed().size() * order_.followed().size();
    const auto next = std::lower_bound(streamed_.begin(), streamed_.end(), static_cast<uint32_t>(position - lap));
    return next != streamed_.end() ? lap + *next : lap + order_.followed().size() + streamed_.front();
}

void Prefetcher::pump(uint64_t now_ns, bool in_parts) {
    if (!order_.known()) return;
    const uint64_t horizon = order_.position().cursor() + order_.followed().size();
    next_ = std::max(next_, order_.position().cursor());
    for (uint32_t looked = 0; looked < kEntriesAtOnce; looked++, next_++) {
        next_ = std::min(next_candidate(next_), horizon);
        if (next_ == horizon) return;
        Unit& unit = memory_.registry.unit(order_.followed().at(next_).unit);
        if (unit.memory != Memory::planned || unit.complete()) continue;  // present, or on their way
        if (unit.held || unit.updating() || unit.load_queued() || unit.writing() != Writing::none ||
            loader_.queued() >= kQueuedLoads)
            return;
        const uint32_t free = free_pages(unit, next_);
        const uint64_t deadline_ns = now_ns + order_.compute_until(next_);
        if (free < unit.ring_pages) {
            const bool worth = in_parts && unit.in_one_piece && !unit.whole && !unit.ring_present() &&
                               uint64_t(free) * kSmallestPart >= unit.ring_pages;
            if (worth) (void)loader_.begin_part(unit, deadline_ns, free).ok();  // the acquire will meet a failure again
            return;
        }
        const bool begun = loader_.begin(unit, deadline_ns).ok();
        if (begun) continue;
        next_++;
        return;
    }
}

}  // namespace stagehand::core
