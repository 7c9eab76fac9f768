// Kind: one kind of step: its name, its order, and the times that the engine computes for in it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/order.h"
#include "policy/time_drift.h"

namespace stagehand::core {

struct Kind {
    bool live = false;
    bool has_times = false;               // the entries have the times that the engine computes for
    bool refused = false;                 // no plan fits that has this order beside others
    uint32_t order = 0;                   // the number of its order, which kinds may share
    uint32_t samples = 0;                 // that the times are the mean of
    uint64_t steps = 0, last = 0;         // number of steps, and when the last one was
    std::string name;                     // empty: told apart by itself
    std::vector<Order::Entry> entries;    // its order and times; empty: not known yet
    std::vector<Order::Entry> deviation;  // another order that came once, of a named kind
    policy::TimeDrift drift;

    std::vector<uint64_t> times() const;
    // The times of a step of this kind that was measured. Returns true if they differ from those that are known.
    bool saw_times(std::vector<uint64_t> measured);
    // Takes an order, without times.
    void take_order(uint32_t number, std::vector<Order::Entry> of);
    void forget_order() noexcept;
};

}  // namespace stagehand::core
