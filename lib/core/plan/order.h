// Order: the order in which a step uses the units, given or learned, and the engine's position in it. Steps of several
// kinds may have an order each, of which one is followed at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
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
    // True if any of the orders contains the unit.
    bool contains(uint32_t unit) const {
        return contains(first_, unit) ||
               std::ranges::any_of(others_, [&](const Other& other) { return contains(other.first, unit); });
    }
    // The units that some order contains.
    std::vector<uint32_t> units() const;

    // Replaces the order. `units` is the number of units. An empty order is to be learned. If host memory is too short,
    // the old order stays.
    void set(std::vector<Entry> entries, size_t units, bool given, uint32_t number = 0);

    // Orders of other kinds. Each order has a number. add() follows the new order from the step's beginning on, and
    // changes nothing if host memory is too short. follow() has the order followed, and returns false if it was
    // followed already or there is no such order. It allocates nothing. remove_others() leaves the followed order.
    void add(std::vector<Entry> entries, size_t units, uint32_t number);
    bool follow(uint32_t number) noexcept;
    void remove_others() noexcept { others_.clear(); }
    void remove_other(uint32_t number) noexcept {
        std::erase_if(others_, [&](const Other& other) { return other.number == number; });
    }
    bool has_others() const { return !others_.empty(); }
    std::vector<uint32_t> other_numbers() const {
        std::vector<uint32_t> numbers;
        for (const Other& other : others_) numbers.push_back(other.number);
        return numbers;
    }
    bool has(uint32_t number) const {
        return known() && (number == number_ ||
                           std::ranges::any_of(others_, [&](const Other& other) { return other.number == number; }));
    }
    uint32_t number() const { return number_; }  // of the order that is followed
    // The number of the order with these units and uses, if there is one.
    std::optional<uint32_t> find(const std::vector<Entry>& entries) const {
        if (known() && same(entries_, entries)) return number_;
        for (const Other& other : others_)
            if (same(other.entries, entries)) return other.number;
        return std::nullopt;
    }
    // The engine has left the order. Follows another order that begins as this step did, if there is one. The position
    // is then where the engine is.
    bool recognise() noexcept;
    // Writes compute times into the order with that number, one for each entry.
    template <class Use>
    void set_times(uint32_t number, const std::vector<Use>& times) noexcept {
        const auto write = [&](std::vector<Entry>& entries, std::vector<uint64_t>& begins_ns) {
            if (entries.size() != times.size()) return;
            for (size_t i = 0; i < entries.size(); i++) entries[i].compute_ns = times[i].compute_ns;
            sum_times(entries, begins_ns);
        };
        if (number == number_) write(entries_, begins_ns_);
        for (Other& other : others_)
            if (other.number == number) write(other.entries, other.begins_ns);
    }

    // Forgets the order, so that it is learned again.
    void clear() noexcept;
    // A learned order for which the memory is too short is set aside. It counts as unknown until it is taken up again,
    // and the same order is not learned meanwhile. take_up() returns false if no order is set aside.
    void set_aside() noexcept;
    bool take_up(size_t units);
    bool is_aside() const { return !aside_.empty(); }
    bool is_aside(uint32_t number) const { return is_aside() && aside_number_ == number; }
    // Removes units that are gone from the order and from the record that is being learned. If host memory is too short
    // for that, the order is forgotten.
    template <class IsGone>
    void forget(IsGone is_gone, size_t units) noexcept {
        const auto of_gone = [&](const Entry& entry) { return is_gone(entry.unit); };
        std::erase_if(recorded_, of_gone);
        std::erase_if(aside_, of_gone);
        std::erase_if(others_, [&](const Other& other) { return std::ranges::any_of(other.entries, of_gone); });
        if (std::none_of(entries_.begin(), entries_.end(), of_gone)) return;
        std::vector<Entry> entries = std::move(entries_);
        std::erase_if(entries, of_gone);
        const Status status = no_throw([&] { return replace(std::move(entries), units), Status(); });
        if (!status.ok() || (entries_.empty() && others_.empty())) return clear();
        if (!entries_.empty()) return;
        // Nothing is left of the order that was followed. Another one takes its place.
        exchange(others_.back());
        others_.pop_back();
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
    // What was recorded of the last step. Empty if it is no order.
    const std::vector<Entry>& recorded() const;
    template <class IsGone>
    void erase_recorded(IsGone is_gone) noexcept {
        std::erase_if(recorded_, is_gone);
    }
    static bool same(const std::vector<Entry>& a, const std::vector<Entry>& b) {
        return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                          [](const Entry& x, const Entry& y) { return x.unit == y.unit && x.uses == y.uses; });
    }

private:
    uint64_t begin_ns(uint64_t position) const {
        return position / entries_.size() * begins_ns_.back() + begins_ns_[position % entries_.size()];
    }
    struct Other {
        std::vector<Entry> entries;
        std::vector<uint32_t> first, positions;
        std::vector<uint64_t> begins_ns;
        uint32_t number = 0;
    };
    static bool contains(const std::vector<uint32_t>& first, uint32_t unit) {
        return unit + 1 < first.size() && first[unit] < first[unit + 1];
    }
    static Other make(std::vector<Entry> entries, size_t units);
    static void sum_times(const std::vector<Entry>& entries, std::vector<uint64_t>& begins_ns) noexcept {
        for (size_t i = 0; i < entries.size(); i++) begins_ns[i + 1] = begins_ns[i] + entries[i].compute_ns;
    }
    void replace(std::vector<Entry> entries, size_t units);
    void exchange(Other& other) noexcept;

    std::vector<Entry> entries_;
    std::vector<uint32_t> first_;      // for each unit, where its positions begin in positions_
    std::vector<uint32_t> positions_;  // ascending for each unit
    std::vector<uint64_t> begins_ns_;  // of the entries, from the first one on, and then the end of the last one
    std::vector<Other> others_;
    std::vector<Entry> recorded_;
    std::vector<Entry> aside_;  // the order that is set aside; empty if there is none
    uint32_t aside_number_ = 0;
    uint64_t cursor_ = 0;
    uint32_t arrived_ = 0;  // uses of the entry at the cursor that have come
    uint32_t number_ = 0;
    bool given_ = false;
    bool deviated_ = false;
    bool recording_ = false;
};

}  // namespace stagehand::core
