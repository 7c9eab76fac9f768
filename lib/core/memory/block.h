// The records of a model: blocks, as the engine knows them, and units, as the device knows them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <stagehand/backend.h>
#include <stagehand/runtime.h>

#include "policy/delivery.h"
#include "transfer/host/packed_copy.h"
#include "transfer/source/segment.h"

namespace stagehand::core {

constexpr uint32_t kNone = UINT32_MAX;

struct Load;

// The packed copies of a block's segments (SH_BLOCK_PACK): one entry for each, or none.
using BlockCopies = std::vector<transfer::PackedCopy>;

// The parts of a block that are seldom needed.
struct BlockDetail {
    std::vector<transfer::Segment> segments;  // sorted by offset
    // Of a mutable block with packed copies: the engine's memory of these segments, sorted by offset. Write-backs go
    // there. If it `has_news`, the next load reads it, and the copies are `spent`: only older loads read them. Spent
    // copies stay until all loads have ended, for a change of the plan.
    std::vector<transfer::Segment> plain, spent;
    bool has_news = false;
    uint64_t update = 0;        // the number of the update in which the engine has the sources for itself; 0: none
    bool was_replaced = false;  // the segments, in that update
    sh_load_fn on_load = nullptr;
    void* user_data = nullptr;
    std::string name;
    uint64_t held_since_ns = 0;  // set while a trace is recorded
    uint64_t protections = 0;    // how often the block is protected
    uint64_t readers = 0;        // calls that read the sources beside loads
};

// The engine's changes of a block. Only Changes writes this state.
class BlockState {
public:
    bool updating() const { return updating_; }  // between sh_source_update_begin() and _end()
    // Bytes in resident pages, or in ring pages, are newer than the source.
    bool dirty() const { return dirty_own_ || dirty_ring_; }
    bool written_own() const { return written_own_; }  // dirty bytes are on their way to the source
    bool written_ring() const { return written_ring_; }
    bool written() const { return written_own_ || written_ring_; }

private:
    friend class Changes;
    bool updating_ = false;
    bool dirty_own_ = false, dirty_ring_ = false;
    bool written_own_ = false, written_ring_ = false;
    bool void_ = false;  // bytes that are on their way do not become dirty again if the write-back fails
};

// What every acquire touches: one cache line. Ids are compared whole, so a free record (id 0) matches no id.
struct alignas(64) Block : BlockState {
    uint16_t taking = 0;  // of `held`: by calls that have not returned, which no release may end
    sh_block id = 0;
    uint64_t address = 0;
    uint64_t bytes = 0;
    uint32_t unit = kNone;
    uint32_t held = 0;
    uint32_t flags = 0;       // SH_BLOCK_*
    uint16_t generation = 0;  // how often the record was taken, a part of the id
    std::unique_ptr<BlockDetail> detail;
    uint32_t next = kNone;  // the next block of the unit, by address
    uint32_t previous = kNone;
};
static_assert(sizeof(Block) == 64);

enum class Memory : uint8_t {
    none,       // no memory behind its addresses
    planned,    // some first pages of its own, the rest in the ring
    unordered,  // all pages of its own, lent by the cache of unordered units; of a member: a slot of its set's pool
};

// A use of a unit's memory on one stream.
struct UnitUse {
    sh_stream stream = 0;
    sh_backend_event event = 0;  // recorded at the last release on the stream
};

// A reason why a view of a unit cannot be given at once to every stream. A unit without hindrance is ready.
enum Hindrance : uint8_t {
    kMissing = 1,   // not all its bytes are present or on their way
    kLoading = 2,   // a load of the unit is not known to have finished
    kStale = 4,     // the contents are out of date, and are dropped when nobody holds the unit
    kUpdating = 8,  // the source of one of its blocks is being changed
    // A write-back reads the unit until `written_back` has come. New views are ordered after that event.
    kBeingRead = 16,
    // A launch of a graph loads the unit's ring pages until `arrives` has come.
    kArriving = 32,
};

// The state of a write-back that the host has to see to. Else the device alone writes pinned sources.
enum class Writing : uint8_t {
    none,
    queued,  // the workers have not recorded `written_back` yet, and have to read the device's bytes
    read,    // the workers still write the source
};

// What a unit's memory contains, and how that compares to the source. Only Contents and Changes write this state, each
// its part.
class UnitState {
public:
    bool ready() const { return hindrances_ == 0; }
    bool hindered_by(uint8_t hindrances) const { return (hindrances_ & hindrances) != 0; }
    bool complete() const { return !hindered_by(kMissing); }
    bool stale() const { return hindered_by(kStale); }
    bool updating() const { return hindered_by(kUpdating); }
    uint64_t serial() const { return serial_; }              // grows with each load
    uint32_t own_valid() const { return own_valid_; }        // the first so many pages of its own are loaded
    uint32_t ring_present() const { return ring_present_; }  // ring pages that hold this unit's bytes
    // Bits of the stream table: the streams that used the unit since it was last fenced.
    uint64_t used_streams() const { return used_streams_; }
    const std::vector<UnitUse>& uses() const { return uses_; }  // of its ring pages, or of a member's slot
    uint64_t last_use() const { return last_use_; }             // when its last view was released, counted in releases
    sh_backend_event arrives() const { return arrives_; }
    Load* load() const { return load_; }     // a load that is under way, or that is not known to have finished
    bool unseen() const { return unseen_; }  // a load was begun, and nobody has waited for it
    bool load_queued() const { return load_queued_; }  // workers have parts of the load and will call back

    bool dirty() const { return dirty_blocks_ > 0; }  // a block of the unit is dirty in ring pages
    Writing writing() const { return writing_; }
    // If not 0: the unit's pages may be overwritten after this event, when the write-back has landed.
    sh_backend_event written_back() const { return written_back_; }

private:
    friend class Contents;
    friend class Changes;
    friend class Registry;  // counts the units that are not ready

    uint64_t serial_ = 0;
    uint64_t used_streams_ = 0;
    uint64_t last_use_ = 0;
    uint32_t own_valid_ = 0;
    uint32_t ring_present_ = 0;
    uint8_t hindrances_ = kMissing;
    bool load_queued_ = false;
    bool unseen_ = false;
    sh_stream waits_ = SH_STREAM_HOST;  // a stream that waits for `load_`
    bool source_written_ = false;       // the device may write pinned sources until `written_back_` has come
    uint32_t changed_steps_ = 0;        // bit k: it was changed k steps before `changed_in_`
    uint32_t changed_in_ = 0;           // the last step in which it was changed, as Changes counts
    Writing writing_ = Writing::none;
    uint32_t updates_ = 0;       // blocks whose sources are being changed
    uint32_t dirty_blocks_ = 0;  // blocks that are dirty in ring pages
    Load* load_ = nullptr;
    sh_backend_event written_back_ = 0, arrives_ = 0;
    std::vector<UnitUse> uses_;
};

// What every acquire touches besides the state. Together with the first half of the state it is one cache line.
struct UnitHold {
    uint32_t held = 0;  // views of the unit's blocks
    // Streamed pages: [own.size(), own.size() + ring_pages) lie at (ring_offset + k) % R in the ring.
    uint32_t ring_pages = 0;
    Memory memory = Memory::none;  // the memory behind the unit's addresses
    bool whole = false;            // SH_BLOCK_WHOLE
    bool unordered = false;        // SH_BLOCK_UNORDERED
    bool packed_tensors = false;   // the device can unpack a source
    // The block's source is contiguous and takes the straight route, so a load needs no workers.
    bool in_one_piece = false;
    bool live = false;
    bool announced = false;  // an acquire returned SH_NOT_READY: the engine has come to the unit and will ask again
    bool bringing = false;   // a caller sees to the unit's load, and may have given up the mutex
};

// What a unit is of a set (SetPools): its pool, which has slots for members, or a member, which has no addresses before
// it lies in a slot.
struct SetPart {
    uint32_t set = kNone;
    uint32_t pool_pages = 0;  // of a pool: those without which it serves no call
};

// What is loaded together and has whole pages of addresses: one block, or several small neighbours.
struct alignas(64) Unit : UnitHold, UnitState {
    uint64_t address = 0;
    uint64_t bytes = 0;
    uint32_t pages = 0;
    uint32_t first_block = kNone;
    uint32_t block_count = 0;
    uint32_t ring_offset = 0;
    uint64_t protections = 0;  // the sum over all its blocks
    uint32_t range = kNone;    // the address range that the unit lies in
    bool has_news = false;     // see BlockDetail
    bool has_spent = false;    // a block has `spent` copies
    uint64_t trip = 0;         // its last trip that may be wrong, see Carrier
    SetPart part;
    uint32_t member = 0;        // its number in its set
    policy::Delivery delivery;  // of its sources, as far as workers read them
    // Resident first pages, or all pages of an unordered unit; mapped. A member has as many zeros in place of a slot.
    std::vector<sh_backend_page> own;

    bool plain_release() const { return ready() && !dirty() && memory == Memory::planned && ring_pages == 0; }
    bool is_pool() const { return part.pool_pages > 0; }
    bool is_member() const { return part.set != kNone && !is_pool(); }
    // Its memory is used by one unit after another, so each use has an event of its own.
    bool takes_turns() const { return ring_pages > 0 || is_member(); }
};

}  // namespace stagehand::core
