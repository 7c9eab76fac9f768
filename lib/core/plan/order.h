// Order: the orders in which steps use the units, given or learned. The engine follows one of them at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/no_throw.h"
#include "core/plan/position.h"
#include "core/plan/sequence.h"

namespace stagehand::core {

// Steps of several kinds may have an order each. Each order has a number.
class Order {
public:
    using Entry = Sequence::Entry;

    bool known() const { return !followed_.empty(); }
    bool given() const { return given_; }
    const Sequence& followed() const { return followed_; }
    const std::vector<Sequence>& others() const { return others_; }
    // True if any of the orders contains the unit.
    bool contains(uint32_t unit) const {
        return followed_.contains(unit) ||
               std::ranges::any_of(others_, [&](const Sequence& other) { return other.contains(unit); });
    }

    // Replaces all orders. `units` is the number of units. An empty order is to be learned. If host memory is too
    // short, the old orders stay.
    void set(std::vector<Entry> entries, size_t units, bool given, uint32_t number = 0);

    // add() follows the new order from the step's beginning on, and changes nothing if host memory is too short.
    // follow() has the order followed, and returns false if it was followed already or there is no such order. It
    // allocates nothing.
    void add(std::vector<Entry> entries, size_t units, uint32_t number);
    bool follow(uint32_t number) noexcept;
    // Removes the orders whose numbers are meant. The followed one stays.
    template <class IsMeant>
    void remove_others_if(IsMeant is_meant) noexcept {
        std::erase_if(others_, [&](const Sequence& other) { return is_meant(other.number()); });
    }
    bool has_others() const { return !others_.empty(); }
    bool has(uint32_t number) const {
        return known() && (number == followed_.number() || std::ranges::any_of(others_, [&](const Sequence& other) {
                               return other.number() == number;
                           }));
    }
    // The number of the order with these units and uses, if there is one.
    std::optional<uint32_t> find(const std::vector<Entry>& entries) const;
    // The engine has left the order. Follows another order that begins as the record of this step does, if there is
    // one. The position is then where the engine is.
    bool recognise(const std::vector<Entry>& record) noexcept;
    // Writes compute times into the order with that number, one for each entry.
    void set_times(uint32_t number, const std::vector<uint64_t>& times) noexcept {
        if (number == followed_.number()) followed_.set_times(times);
        for (Sequence& other : others_)
            if (other.number() == number) other.set_times(times);
    }

    // Forgets the orders, so that one is learned again.
    void clear() noexcept;
    // A learned order for which the memory is too short is set aside. It counts as unknown until it is taken up again,
    // and the same order is not learned meanwhile. take_up() returns false if no order is set aside.
    void set_aside() noexcept;
    bool take_up(size_t units);
    bool is_aside() const { return !aside_.empty(); }
    bool is_aside(uint32_t number) const { return is_aside() && aside_number_ == number; }
    // Removes units that are gone. If host memory is too short for that, the orders are forgotten.
    template <class IsGone>
    void forget(IsGone is_gone, size_t units) noexcept {
        const auto of_gone = [&](const Entry& entry) { return is_gone(entry.unit); };
        std::erase_if(aside_, of_gone);
        std::erase_if(others_, [&](const Sequence& other) { return std::ranges::any_of(other.entries(), of_gone); });
        if (std::ranges::none_of(followed_.entries(), of_gone)) return;
        std::vector<Entry> entries = std::move(followed_).take_entries();
        std::erase_if(entries, of_gone);
        const Status status = no_throw([&] {
            return replace({std::move(entries), units, followed_.number()}), Status();
        });
        if (!status.ok() || (!known() && others_.empty())) return clear();
        if (known()) return;
        // Nothing is left of the order that was followed. Another one takes its place.
        replace(std::move(others_.back()));
        others_.pop_back();
    }

    // Where the engine is in the order that it follows.
    const Position& position() const { return position_; }
    // A step begins or ends.
    void to_edge() noexcept { position_.to_edge(followed_); }
    // The engine uses the unit now. Returns false if the unit does not occur in the order.
    bool arrive(uint32_t unit) noexcept { return known() && position_.arrive(followed_, unit); }
    // The time for which the engine computes from the entry at the cursor until the one at `position`.
    uint64_t compute_until(uint64_t position) const {
        return followed_.begin_ns(position) - followed_.begin_ns(position_.cursor());
    }

private:
    void replace(Sequence sequence) noexcept;
    void exchange(Sequence& other) noexcept;

    Sequence followed_;
    std::vector<Sequence> others_;
    std::vector<Entry> aside_;  // the order that is set aside; empty if there is none
    uint32_t aside_number_ = 0;
    Position position_;
    bool given_ = false;
};

}  // namespace stagehand::core
