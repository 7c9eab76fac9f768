// Sequence: one order of use, with an index of where each unit occurs and of the time that passes until then.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace stagehand::core {

// Positions are absolute and grow from step to step. Position p stands for entry p % size().
class Sequence {
public:
    struct Entry {
        uint32_t unit = 0;
        uint64_t compute_ns = 0;
        uint32_t uses = 1;  // acquires in a row; the memory is needed until the last one

        bool is_like(const Entry& other) const { return unit == other.unit && uses == other.uses; }
    };

    Sequence() = default;
    // `units` is the number of units. `number` tells the sequence from others.
    Sequence(std::vector<Entry> entries, size_t units, uint32_t number);

    bool empty() const { return entries_.empty(); }
    uint64_t size() const { return entries_.size(); }
    uint32_t number() const { return number_; }
    const std::vector<Entry>& entries() const { return entries_; }
    const Entry& at(uint64_t position) const { return entries_[position % entries_.size()]; }
    // No contained unit has this number or a higher one.
    uint32_t units() const { return first_.empty() ? 0 : static_cast<uint32_t>(first_.size() - 1); }
    bool contains(uint32_t unit) const { return unit < units() && first_[unit] < first_[unit + 1]; }
    // The position of the unit's next use at or after `from`. UINT64_MAX if the unit does not occur.
    uint64_t next_use(uint32_t unit, uint64_t from) const;
    // The time for which the engine computes from position 0 until the entry at `position`.
    uint64_t begin_ns(uint64_t position) const {
        return position / size() * begins_ns_.back() + begins_ns_[position % size()];
    }
    // The last entry of the record has just come, and its uses may not be complete.
    bool begins_as(const std::vector<Entry>& record) const;

    // Writes compute times into the entries, one for each entry.
    void set_times(const std::vector<uint64_t>& times) noexcept {
        if (entries_.size() != times.size()) return;
        for (size_t i = 0; i < entries_.size(); i++) entries_[i].compute_ns = times[i];
        sum_times();
    }
    // The entries. The sequence can only be destroyed or replaced afterwards.
    std::vector<Entry> take_entries() && noexcept { return std::move(entries_); }

    // Whether the same units are used as often in a row. Times do not matter.
    static bool same(const std::vector<Entry>& a, const std::vector<Entry>& b) {
        return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                          [](const Entry& x, const Entry& y) { return x.is_like(y); });
    }

private:
    void sum_times() noexcept;

    std::vector<Entry> entries_;
    std::vector<uint32_t> first_;      // for each unit, where its positions begin in positions_
    std::vector<uint32_t> positions_;  // ascending for each unit
    std::vector<uint64_t> begins_ns_;  // of the entries, from the first one on, and then the end of the last one
    uint32_t number_ = 0;
};

}  // namespace stagehand::core
