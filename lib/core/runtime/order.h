// Order: the order in which a step uses the units: given or learned, and where the engine is in it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/memory/block.h"

namespace stagehand::core {

// Positions are absolute: they grow from step to step; position p stands for entry p % size(). The order is a hint, so any unit may
// come at any time: the place then jumps to the unit's next occurrence.
class Order {
public:
    struct Entry {
        uint32_t unit = 0;
        uint64_t compute_ns = 0;
        uint32_t uses = 1;   // acquires of it in a row: its memory is needed until the last
    };

    bool known() const { return !entries_.empty(); }
    bool given() const { return given_; }
    uint64_t size() const { return entries_.size(); }
    const std::vector<Entry>& entries() const { return entries_; }
    const Entry& at(uint64_t position) const { return entries_[position % entries_.size()]; }
    bool contains(uint32_t unit) const { return unit + 1 < first_.size() && first_[unit] < first_[unit + 1]; }

    // Replaces the order. `units` is how many units there are. Empty: to be learned. One that finds no memory is forgotten.
    void set(std::vector<Entry> entries, size_t units, bool given);

    // Forgets it, to be learned anew.
    void clear() noexcept;
    // Units that are gone: neither the order nor what is being learned names them any more.
    template <class IsGone>
    void forget(IsGone is_gone, size_t units) {
        const auto of_gone = [&](const Entry& entry) { return is_gone(entry.unit); };
        std::erase_if(recorded_, of_gone);
        std::erase_if(previous_, of_gone);
        if (std::none_of(entries_.begin(), entries_.end(), of_gone)) return;
        std::vector<Entry> entries = std::move(entries_);
        std::erase_if(entries, of_gone);
        set(std::move(entries), units, given_);
    }

    // A step begins or ends: the place moves to the step's edge.
    void to_edge();
    // The engine uses the unit now; false: it does not occur. Cheap when it comes as foreseen.
    bool arrive(uint32_t unit);
    // Position of the first entry whose uses have not all arrived.
    uint64_t cursor() const { return cursor_; }
    // Position of the unit's next use at or after `from`; UINT64_MAX if it does not occur.
    uint64_t next_use(uint32_t unit, uint64_t from) const;
    uint64_t mean_compute_ns() const { return mean_compute_ns_; }
    // The order was not as foreseen since the last edge.
    bool deviated() const { return deviated_; }

    // Learning: what was used since the step began. Steps longer than this are no order.
    static constexpr size_t kLongest = size_t(1) << 21;
    void record_begin();
    void record(uint32_t unit);
    void record_end();
    bool recording() const { return recording_; }
    // The order to change to after a step, if it is time: the first one seen, or one that came twice. Empty: none.
    std::vector<Entry> learned();

private:
    void find_positions(size_t units);

    std::vector<Entry> entries_;
    std::vector<uint32_t> first_;      // per unit, where its positions begin in positions_
    std::vector<uint32_t> positions_;  // ascending per unit
    std::vector<Entry> recorded_, previous_;
    uint64_t cursor_ = 0;
    uint32_t arrived_ = 0;             // uses of the entry at the cursor that have come
    uint64_t mean_compute_ns_ = 0;
    bool given_ = false;
    bool deviated_ = false;
    bool recording_ = false;
};

}  // namespace stagehand::core
