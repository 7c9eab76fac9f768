// UnorderedCache: device memory for units outside the order. Pages are mapped when a unit is acquired, and stay until
// others need them more.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/memory/model_memory.h"
#include "core/movement/loader.h"
#include "core/movement/write_back.h"
#include "core/plan/order.h"
#include "core/plan/set_pools.h"
#include "policy/landlord.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class UnorderedCache {
public:
    UnorderedCache(ModelMemory& memory, const Order& order, Loader& loader, WriteBack& write_back,
                   sh_runtime_stats& stats)
        : memory_(memory),
          order_(order),
          loader_(loader),
          write_back_(write_back),
          stats_(stats),
          sets_(memory, loader, write_back, stats) {}

    uint64_t capacity() const { return capacity_; }  // in pages
    uint64_t used() const { return used_ + sets_.pages(); }
    // What it does for the members of sets.
    SetPools& sets() { return sets_; }
    // The most pages that were held at once, of units outside the order.
    uint64_t held_peak() const { return held_peak_; }

    // Maps memory behind a unit, in place of the units that are least worth keeping. Waits on the host for the last
    // uses of the units that are dropped. Returns SH_ERROR_HELD if the remaining units are held. The mutex may be given
    // up meanwhile.
    Status place(Unit& unit, std::unique_lock<std::mutex>& lock);
    // The unit was used, so it is kept longer.
    void touch(Unit& unit);
    // The unit's first view was taken, or its last view was released.
    void hold(Unit& unit);
    void unhold(Unit& unit);

    // A pinned unit must not be dropped, because it is protected.
    void pin(Unit& unit);
    void unpin(Unit& unit);
    // Pins a unit while a caller sees to its load and nobody holds it yet.
    class Pin {
    public:
        Pin(UnorderedCache& cache, Unit& unit) : cache_(cache), unit_(unit) { cache_.pin(unit_); }
        ~Pin() { cache_.unpin(unit_); }
        Pin(const Pin&) = delete;
        Pin& operator=(const Pin&) = delete;

    private:
        UnorderedCache& cache_;
        Unit& unit_;
    };

    // hand_over(): the unit is planned from now on and keeps its pages. take_back() undoes that.
    void hand_over(Unit& unit);
    void take_back(Unit& unit);
    // The unit, which has no memory here, is gone. Its use says nothing about the next unit with the same index.
    void forget(Unit& unit);
    // Takes a unit's memory away, unless a caller holds or loads the unit meanwhile.
    Status drop(Unit& unit, std::unique_lock<std::mutex>& lock);
    // Changes the capacity and drops the units beyond it. Returns SH_ERROR_HELD if these are held.
    Status resize(uint64_t pages, std::unique_lock<std::mutex>& lock);

private:
    // Drops a unit, unless a caller holds or loads the unit meanwhile, or `may` returns false.
    Status drop_while(Unit& unit, const std::function<bool()>& may, std::unique_lock<std::mutex>& lock);
    // Drops the unit that is least worth keeping, unless the unit is protected meanwhile. There must be one.
    Status drop_one(std::unique_lock<std::mutex>& lock);
    Status make_room(uint64_t pages, std::unique_lock<std::mutex>& lock);
    uint64_t pages_of_sets();
    void insert(Unit& unit);
    std::string holders();
    Status no_room(uint64_t pages);

    ModelMemory& memory_;
    const Order& order_;
    Loader& loader_;
    WriteBack& write_back_;
    sh_runtime_stats& stats_;
    SetPools sets_;
    policy::Landlord worth_;
    uint64_t capacity_ = 0;
    uint64_t used_ = 0;           // without the pools of sets
    uint64_t held_ = 0;           // pages that are held of units that never join the order
    uint64_t held_to_learn_ = 0;  // pages that are held of other units
    uint64_t held_peak_ = 0;
};

}  // namespace stagehand::core
