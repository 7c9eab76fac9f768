// Kinds: the kinds of step that a runtime knows, told apart by name or by order.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "base/status.h"
#include "core/memory/block.h"
#include "core/plan/kind.h"
#include "core/plan/order.h"
#include "core/plan/order_record.h"
#include "policy/kind_history.h"

namespace stagehand::core {

// The compute times of orders, one for each entry, by the numbers of the orders.
using OrderTimes = std::map<uint32_t, std::vector<uint64_t>>;

// True if a plan for one may be worse for the other.
bool differ(const OrderTimes& one, const OrderTimes& other);

// The caller holds the runtime's mutex in all methods.
class Kinds {
public:
    static constexpr uint32_t kMost = policy::KindHistory::kMostKinds;

    const std::array<Kind, kMost>& all() const { return kinds_; }
    Kind& at(uint32_t kind) { return kinds_[kind]; }

    // Finds the kind with that name. A new one takes the place of the one that was used least recently.
    Status find(const char* name, uint32_t* out);
    // A step begins, of a named kind, or of one that its order tells (kNone). Allocates nothing for a kind whose order
    // is known.
    void begin(uint32_t named, const Order& order);
    // The named kind of the step that is under way, or was the last one. For other kinds, the one that was recognised
    // when the step had ended. kNone: not known.
    uint32_t current() const { return current_; }
    // Tells the kind of the step that has ended, by its record. Changes the orders that a plan has to know: the new
    // order replaces all others if the engine may have changed for good, and is added if kinds alternate.
    enum class Learned : uint8_t { nothing, replaced, added };
    Learned learn(Order& order, const OrderRecord& record, size_t units);
    // The number of the order that the step under way, or the next one, will probably follow.
    uint32_t order_of_this(const Order& order) const;
    uint32_t order_of_next(const Order& order) const;

    // The times of a step of this kind that was measured, one for each entry of its order. Returns true if they differ
    // from those that are known, so that another sample soon tells more.
    bool saw_times(uint32_t kind, std::vector<uint64_t> times);
    // True if a kind that comes has no times yet.
    bool wants_times() const;

    // The times of the orders that come, as far as they are known. Of kinds with the same order, those of the one that
    // computes nearest to as long as the copies of a step take, unless it is rare: such steps need their plan most, and
    // it suits the others well enough.
    OrderTimes times(const Order& order, double copy_ns) const;
    // The number of steps in which the same kinds came.
    uint64_t stable_for() const { return history_.stable_for(); }

    // Removes the orders of kinds that do not alternate or, with `only_old`, of those that have not come for long.
    void remove_stale(Order& order, bool only_old) const;
    // No plan fits all orders: the others are not added again.
    void refuse_others(const Order& order);
    // The engine has given an order: what was learned is forgotten, except for the names.
    void clear() noexcept;
    // Forgets units that are gone.
    template <class IsGone>
    void forget(IsGone is_gone) noexcept {
        const auto of_gone = [&](const Order::Entry& entry) { return is_gone(entry.unit); };
        for (uint32_t kind = 0; kind < kMost; kind++) {
            std::erase_if(kinds_[kind].deviation, of_gone);
            if (std::ranges::any_of(kinds_[kind].entries, of_gone)) forget_order(kind);
        }
    }

private:
    // No other kind comes any more, so that this one's order may replace those that it did not fit beside.
    bool is_alone(uint32_t kind) const { return history_.active() == 1u << kind && history_.steps_in_a_row() > 1; }
    void came(uint32_t kind) noexcept;
    uint32_t make_room();
    void drop(uint32_t kind) noexcept;
    void forget_order(uint32_t kind) noexcept;
    uint32_t find_order(const std::vector<Order::Entry>& entries, bool unnamed) const;
    void take_order(uint32_t kind, const Order& order, std::vector<Order::Entry> entries);
    Learned learn_named(Order& order, const std::vector<Order::Entry>& recorded, size_t units);
    Learned learn_unnamed(Order& order, const std::vector<Order::Entry>& recorded, size_t units);
    Learned bring_in(Order& order, uint32_t kind, bool replaces, size_t units);

    std::array<Kind, kMost> kinds_;
    policy::KindHistory history_;
    uint32_t current_ = UINT32_MAX;
    uint32_t next_order_ = 1;
    uint64_t clock_ = 0;
    // Orders are added at growing intervals, so that an engine with very many kinds does not plan all the time.
    uint64_t next_add_ = 0;
    uint32_t adds_ = 0;
};

}  // namespace stagehand::core
