// UnorderedCache: device memory for units whose order of use nobody knows. Pages are mapped when a unit is acquired and stay until
// others need them more.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/contents/loader.h"
#include "core/contents/write_back.h"
#include "core/memory/placement.h"
#include "core/memory/registry.h"
#include "core/memory/stream_table.h"
#include "policy/landlord.h"

namespace stagehand::core {

// All methods are called with the runtime's mutex held.
class UnorderedCache {
public:
    UnorderedCache(Registry& registry, Placement& placement, Loader& loader, WriteBack& write_back, StreamTable& streams, sh_runtime_stats& stats)
        : registry_(registry), placement_(placement), loader_(loader), write_back_(write_back), streams_(streams), stats_(stats) {}

    uint64_t capacity() const { return capacity_; }      // pages
    uint64_t used() const { return used_; }
    uint64_t held_peak() const { return held_peak_; }    // most pages that were held at once

    // Maps memory behind a unit, in place of what is least worth keeping. Waits on the host for the last uses of what is dropped.
    // SH_ERROR_HELD when what is in the way is held. The mutex may be given up meanwhile.
    Status place(Unit& unit, std::unique_lock<std::mutex>& lock);
    // The unit was used; keeps it longer.
    void touch(Unit& unit);
    // The unit's first view was taken, or its last was released.
    void hold(Unit& unit);
    void unhold(Unit& unit);

    // While a load of it is being seen to, and nobody holds it yet, it must not be dropped.
    void pin(Unit& unit) { worth_.hold(index_of(unit)); }
    void unpin(Unit& unit) { worth_.release(index_of(unit)); }

    // The unit is planned from now on and keeps its pages.
    void hand_over(Unit& unit);
    // The unit, which has no memory here, is gone: how often it was used says nothing of the next one in its place.
    void forget(Unit& unit) { worth_.forget(index_of(unit)); }
    // Takes a unit's memory away; it is not held.
    Status drop(Unit& unit, std::unique_lock<std::mutex>& lock);
    // Changes the capacity; drops what is beyond it. SH_ERROR_HELD when that is held.
    Status resize(uint64_t pages, std::unique_lock<std::mutex>& lock);

private:
    Status drop_one(std::unique_lock<std::mutex>& lock);   // that is least worth keeping; there is one
    Status make_room(uint64_t pages, std::unique_lock<std::mutex>& lock);
    uint32_t index_of(const Unit& unit) { return static_cast<uint32_t>(&unit - registry_.units().data()); }
    std::string holder();

    Registry& registry_;
    Placement& placement_;
    Loader& loader_;
    WriteBack& write_back_;
    StreamTable& streams_;
    sh_runtime_stats& stats_;
    policy::Landlord worth_;
    uint64_t capacity_ = 0;
    uint64_t used_ = 0;
    uint64_t held_ = 0;
    uint64_t held_peak_ = 0;
};

}  // namespace stagehand::core
