// SetPools: device memory for the members of sets. All members of a set have the same size, so that each fits into any
// slot of the set's pool, and no page is mapped when one takes the place of another.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <stagehand/members.h>

#include "base/status.h"
#include "core/memory/model_memory.h"
#include "core/memory/set_shape.h"
#include "core/movement/loader.h"
#include "core/movement/write_back.h"
#include "policy/member_cache.h"
#include "telemetry/set_reading.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class SetPools {
public:
    SetPools(ModelMemory& memory, Loader& loader, WriteBack& write_back, sh_runtime_stats& stats)
        : memory_(memory), loader_(loader), write_back_(write_back), stats_(stats) {}

    // The number of the next set, for SetPart. `may_reuse`: see Registry::add().
    uint32_t next(bool may_reuse) const;
    // Takes a set over whose blocks are registered. On a failure there is none.
    Status add(const Block& pool, std::span<const sh_block> members, const SetShape& shape);
    // The pool has no memory, or the member no slot, and does not exist any more.
    void forget(const Unit& unit);

    // The handle of the set whose pool is this block. No block has it.
    static sh_set handle_of(sh_block pool) { return pool ^ kHandleBit; }
    // The pool of a set.
    Status find(sh_set set, const Unit** out);
    // The blocks of these members of it, each once or more. An error names the set and a number that is none.
    Status blocks_of(const Unit& pool, std::span<const uint32_t> members, std::vector<sh_block>* out);
    std::vector<sh_block> blocks_of(const Unit& pool) const;  // all that are left
    uint32_t slot_of(const Unit& member) const;
    void describe(const Unit& pool, sh_set_info* out) const;
    std::vector<telemetry::SetReading> readings() const;  // of all sets
    void fill(const Unit& pool, sh_set set, uint32_t view_flags, sh_view* out) const;
    // What a call is told that found no slot: that there are too few for it, or `held`.
    Status too_few(const Unit& pool, std::span<const uint32_t> members, Status held) const;
    // Members that one call wants: while this object lives, none of them makes room for another one.
    class Call {
    public:
        Call(SetPools& pools, const Unit& pool, std::span<const uint32_t> members);
        ~Call();
        Call(const Call&) = delete;
        Call& operator=(const Call&) = delete;

    private:
        SetPools& pools_;
        const uint32_t set_;
        const std::span<const uint32_t> members_;
    };

    uint64_t pages() const;        // that all pools have
    uint64_t least_pages() const;  // without which some set serves no call
    uint64_t most_pages() const;   // that all pools can use
    // Gives all pools together as many of these pages as they can use. Members in slots that go are dropped, unless
    // they are held: then the pool stays as it is, and the result is SH_ERROR_HELD. The mutex may be given up.
    Status resize(uint64_t pages, std::unique_lock<std::mutex>& lock);

    // As in UnorderedCache, of a member. drop() also takes a pool, with all its members.
    Status place(Unit& member, std::unique_lock<std::mutex>& lock);
    void touch(const Unit& member);
    // A call will use the member with this chance. Gives it a slot if that is worth it. Otherwise SH_NOT_READY.
    Status guess(Unit& member, double chance, std::unique_lock<std::mutex>& lock);
    void pin(const Unit& member) { cache_of(member).hold(member.member); }
    void unpin(const Unit& member) { cache_of(member).release(member.member); }
    Status drop(Unit& unit, std::unique_lock<std::mutex>& lock);

private:
    static constexpr uint64_t kHandleBit = uint64_t(1) << 63;

    struct Set {
        explicit Set(uint32_t groups = 0, uint32_t width = 1) : width(width), cache(groups, width, 0), groups(groups) {}

        uint32_t pool = kNone;  // its unit; kNone: this place is free
        uint64_t stride = 0;
        uint32_t width = 1;             // members of a group
        std::vector<uint32_t> members;  // their units; kNone: gone
        std::vector<uint32_t> wanted;   // of each member: by so many calls that are under way
        policy::MemberCache cache;
        uint64_t evictions = 0;
        std::vector<telemetry::GroupReading> groups;  // counts of each
    };

    Set& set_of(const Unit& member) { return sets_[member.part.set]; }
    policy::MemberCache& cache_of(const Unit& member) { return set_of(member).cache; }
    Unit& pool_of(const Set& set) { return memory_.registry.unit(set.pool); }
    uint64_t address_of(const Set& set, uint32_t slot) const;
    Status clear_slot(Unit& member, double chance, std::unique_lock<std::mutex>& lock);
    void enter(Set& set, Unit& member, const policy::MemberCache::Place& place);
    void leave(Set& set, Unit& member);
    Status drop_member(Unit& member, std::unique_lock<std::mutex>& lock);
    Status resize(Set& set, uint32_t pages, std::unique_lock<std::mutex>& lock);
    Status no_slot(const Unit& member);

    ModelMemory& memory_;
    Loader& loader_;
    WriteBack& write_back_;
    sh_runtime_stats& stats_;
    std::deque<Set> sets_;  // references stay valid while another thread adds a set
};

}  // namespace stagehand::core
