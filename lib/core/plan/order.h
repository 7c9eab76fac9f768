// Order: the order in which a step uses the units, given or learned, and the engine's position in it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/no_throw.h"
#include "core/memory/block.h"

namespace stagehand::core {

// Positions are absolute and grow from step to step. Position p stands for entry p % size(). The order is a hint, so
// any unit may come at any time. The position then jumps to the unit's next occurrence.
class Order {
public:
    struct Entry {
        uint32_t unit = 0;
        uint64_t compute_ns = 0;
        uint32_t uses = 1;  // acquires in a row; the memory is needed until the last one
    };

    bool known() const { return !entries_.empty(); }
    bool given() const { return given_; }
    uint64_t size() const { return entries_.size(); }
    const std::vector<Entry>& entries() const { return entries_; }
    const Entry& at(uint64_t position) const { return entries_[position % entries_.size()]; }
    bool contains(uint32_t unit) const { return unit + 1 < first_.size() && first_[unit] < first_[unit + 1]; }

    // Replaces the order. `units` is the number of units. An empty order is to be learned. If host memory is too short,
    // the old order stays.
    void set(std::vector<Entry> entries, size_t units, bool given);

    // Forgets the order, so that it is learned again.
    void clear() noexcept;
    // A learned order for which the memory is too short is set aside. It counts as unknown until it is taken up again,
    // and the same order is not learned meanwhile. take_up() returns false if no order is set aside.
    void set_aside() noexcept;
    bool take_up(size_t units);
    bool is_aside() const { return !aside_.empty(); }
    // Removes units that are gone from the order and from the record that is being learned. If host memory is too short
    // for that, the order is forgotten.
    template <class IsGone>
    void forget(IsGone is_gone, size_t units) noexcept {
        const auto of_gone = [&](const Entry& entry) { return is_gone(entry.unit); };
        std::erase_if(recorded_, of_gone);
        std::erase_if(previous_, of_gone);
        std::erase_if(aside_, of_gone);
        if (std::none_of(entries_.begin(), entries_.end(), of_gone)) return;
        std::vector<Entry> entries = std::move(entries_);
        std::erase_if(entries, of_gone);
        const Status status = no_throw([&] { return set(std::move(entries), units, given_), Status(); });
        if (!status.ok()) clear();
    }

    // A step begins or ends. The position moves to the edge of the step.
    void to_edge();
    // The engine uses the unit now. Returns false if the unit does not occur in the order. Cheap if the unit was
    // expected.
    bool arrive(uint32_t unit);
    // The position of the first entry whose uses have not all come.
    uint64_t cursor() const { return cursor_; }
    // The position of the unit's next use at or after `from`. UINT64_MAX if the unit does not occur.
    uint64_t next_use(uint32_t unit, uint64_t from) const;
    // The time for which the engine computes from the entry at the cursor until the one at `position`.
    uint64_t compute_until(uint64_t position) const { return begin_ns(position) - begin_ns(cursor_); }
    // The engine has not followed the order since the last edge.
    bool deviated() const { return deviated_; }

    // Learning: the units that were used since the step began. A step with more entries than this has no order.
    static constexpr size_t kLongest = size_t(1) << 21;
    void record_begin();
    void record(uint32_t unit);
    void record_end();
    bool recording() const { return recording_; }
    // The order to change to after a step: the first one seen, or one that came twice in a row. Empty if there is none.
    std::vector<Entry> learned();

private:
    uint64_t begin_ns(uint64_t position) const {
        return position / entries_.size() * begins_ns_.back() + begins_ns_[position % entries_.size()];
    }

    std::vector<Entry> entries_;
    std::vector<uint32_t> first_;      // for each unit, where its positions begin in positions_
    std::vector<uint32_t> positions_;  // ascending for each unit
    std::vector<uint64_t> begins_ns_;  // of the entries, from the first one on, and then the end of the last one
    std::vector<Entry> recorded_, previous_;
    std::vector<Entry> aside_;  // the order that is set aside; empty if there is none
    uint64_t cursor_ = 0;
    uint32_t arrived_ = 0;  // uses of the entry at the cursor that have come
    bool given_ = false;
    bool deviated_ = false;
    bool recording_ = false;
};

}  // namespace stagehand::core
