// Kinds: the kinds of step that a runtime knows, told apart by name, by order, or by the time that is computed.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/memory/block.h"
#include "core/plan/order.h"
#include "core/plan/order_record.h"
#include "core/plan/step_mix.h"
#include "policy/kind_history.h"
#include "policy/time_drift.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class Kinds {
public:
    static constexpr uint32_t kMost = policy::KindHistory::kMostKinds;

    struct Kind {
        bool live = false;
        bool has_times = false;               // the entries have the times that the engine computes for
        bool refused = false;                 // no plan fits that has this order beside others
        uint32_t order = 0;                   // the number of its order, which kinds may share
        uint32_t serial = 0;                  // tells it from an earlier kind in the same place
        uint32_t samples = 0;                 // that the times are the mean of
        uint64_t steps = 0, last = 0;         // number of steps, and when the last one was
        std::string name;                     // empty: told apart by itself
        std::vector<Order::Entry> entries;    // its order and times; empty: not known yet
        std::vector<Order::Entry> deviation;  // another order that came once, of a named kind
        policy::TimeDrift drift;
    };

    const std::array<Kind, kMost>& all() const { return kinds_; }
    Kind& at(uint32_t kind) { return kinds_[kind]; }

    // Finds the kind with that name. A new one takes the place of the one that was used least recently.
    Status find(const char* name, uint32_t* out);
    // A step begins, of a named kind, or of one that tells itself (kNone). Allocates nothing for a kind whose order is
    // known.
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

    // The times of a step that was measured, one for each entry of the order. `kind` is kNone if the kinds of this
    // order are told apart by their times alone. `steps` is the number of steps that the sample stands for. Returns
    // true if the times of a kind have changed, or a kind is new.
    bool saw_times(uint32_t kind, const Order& order, std::vector<uint64_t> times, uint64_t steps);
    // True if a kind that comes has no times yet.
    bool wants_times() const;

    // The mix that the engine makes, as far as it is known. Empty if it cannot be told yet.
    StepMix mix(const Order& order) const;
    uint64_t stable_for(const Order& order) const { return history(order).stable_for(); }

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
    bool is_sampled(const Order& order) const { return !named_ && !order.has_others(); }
    const policy::KindHistory& history(const Order& order) const { return is_sampled(order) ? samples_ : steps_; }
    // No other kind comes any more, so that this one's order may replace those that it did not fit beside.
    bool is_alone(uint32_t kind) const { return steps_.active() == uint32_t{1} << kind && steps_.seen_in_a_row() > 1; }
    uint32_t make_room();
    void drop(uint32_t kind) noexcept;
    void forget_order(uint32_t kind) noexcept;
    uint32_t find_order(const std::vector<Order::Entry>& entries, bool unnamed) const;
    void take_order(uint32_t kind, const Order& order, std::vector<Order::Entry> entries);
    Learned learn_named(Order& order, const std::vector<Order::Entry>& recorded, size_t units);
    Learned learn_unnamed(Order& order, const std::vector<Order::Entry>& recorded, size_t units);
    Learned bring_in(Order& order, uint32_t kind, bool replaces, size_t units);
    uint32_t cluster(const Order& order, const std::vector<uint64_t>& times);

    std::array<Kind, kMost> kinds_;
    policy::KindHistory steps_;    // by steps: of named kinds, and of kinds with orders of their own
    policy::KindHistory samples_;  // by samples: of kinds that differ in their times alone
    uint32_t current_ = UINT32_MAX;
    uint32_t next_order_ = 1;
    uint64_t clock_ = 0;
    // Orders are added at growing intervals, so that an engine with very many kinds does not plan all the time.
    uint64_t next_add_ = 0;
    uint32_t adds_ = 0;
    uint32_t serial_ = 0;
    bool named_ = false;  // some kind has or had a name
};

// True if a plan for one mix may be worse for the other: other kinds, other times, or other weights.
bool differ(const StepMix& one, const StepMix& other);

}  // namespace stagehand::core
