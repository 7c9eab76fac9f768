// The records of a model: blocks, as the engine knows them, and units, as the device knows them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <stagehand/backend.h>
#include <stagehand/runtime.h>

#include "transfer/source/source.h"

namespace stagehand::core {

constexpr uint32_t kNone = UINT32_MAX;

struct Load;

// A segment with what is needed to read it.
struct Segment {
    transfer::Source source;
    uint64_t offset = 0;          // in the unit
    uint64_t bytes = 0;
    bool direct = false;          // pinned, or device memory: copied without staging
    bool joined = false;          // direct, and its memory continues the segment's before it: one copy may span both
    uint64_t pinned_piece = 0;    // not 0: the library pinned it, in pieces of this size, which no copy may span
};

// What a block needs seldom.
struct BlockDetail {
    std::vector<Segment> segments;   // by offset
    sh_load_fn on_load = nullptr;
    void* user_data = nullptr;
    std::string name;
    uint64_t held_since_ns = 0;      // while a trace is recorded
    uint64_t protections = 0;        // counted
};

// What the engine has changed of a block. Changes alone writes it.
class BlockState {
public:
    bool updating() const { return updating_; }                  // between sh_source_update_begin() and _end()
    bool dirty_own() const { return dirty_own_; }                // bytes in resident pages are newer than its source
    bool dirty_ring() const { return dirty_ring_; }              // bytes in ring pages are
    bool dirty() const { return dirty_own_ || dirty_ring_; }
    bool written_own() const { return written_own_; }            // what was dirty is on its way to the source
    bool written_ring() const { return written_ring_; }
    bool written() const { return written_own_ || written_ring_; }

private:
    friend class Changes;
    bool updating_ = false;
    bool dirty_own_ = false, dirty_ring_ = false;
    bool written_own_ = false, written_ring_ = false;
    bool void_ = false;                                          // what is on its way is not dirty again should that fail
};

// What every acquire touches: one cache line. Ids are compared whole, so a free record (id 0) matches nothing.
struct alignas(64) Block : BlockState {
    sh_block id = 0;
    uint64_t address = 0;
    uint64_t bytes = 0;
    uint32_t unit = kNone;
    uint32_t held = 0;
    uint32_t flags = 0;              // SH_BLOCK_*
    uint16_t generation = 0;         // how often the record was taken: part of the id
    std::unique_ptr<BlockDetail> detail;
    uint32_t next = kNone;           // in the unit, by address
    uint32_t previous = kNone;
};
static_assert(sizeof(Block) == 64);

enum class Memory : uint8_t {
    none,        // no memory behind its addresses
    planned,     // a prefix of pages of its own, the rest in the ring
    unordered,   // all pages of its own, lent by the cache of unordered units
};

// A use of a unit's memory on one stream.
struct UnitUse {
    sh_stream stream = 0;
    sh_backend_event event = 0;      // recorded at the last release on that stream
};

// What keeps a view of a unit from being given at once, to any stream. A unit that nothing hinders is ready.
enum Hindrance : uint8_t {
    kMissing = 1,      // not all its bytes are there or on their way
    kLoading = 2,      // a load of it is not known to have finished
    kStale = 4,        // its contents are out of date: dropped when nobody holds it
    kUpdating = 8,     // the source of a block of it is being changed
    kBeingRead = 16,   // by a write-back, unless `written_back` has come: new views are ordered after it
    kArriving = 32,    // a launch of a graph brings its ring pages, unless `arrives` has come
};

// The workers' part of a write-back; what is pinned is written by the device alone.
enum class Writing : uint8_t {
    none,
    queued,   // they have not recorded `written_back` yet: the device's bytes are still to be read
    read,     // they still write the source
};

// What lies in a unit's memory, and how that stands to its source. Contents and Changes alone write it, each its part.
class UnitState {
public:
    bool ready() const { return hindrances_ == 0; }
    bool hindered_by(uint8_t hindrances) const { return (hindrances_ & hindrances) != 0; }
    bool complete() const { return !hindered_by(kMissing); }
    bool stale() const { return hindered_by(kStale); }
    bool updating() const { return hindered_by(kUpdating); }
    uint64_t serial() const { return serial_; }                  // grows with each load
    uint32_t own_valid() const { return own_valid_; }            // pages from the start whose contents are there
    uint32_t ring_present() const { return ring_present_; }      // streamed pages whose contents are this unit's
    uint64_t used_streams() const { return used_streams_; }      // bits of the stream table: that used it since it was last fenced
    const std::vector<UnitUse>& uses() const { return uses_; }   // of its ring pages
    uint64_t last_use() const { return last_use_; }              // when its last view was released, counted in releases
    sh_backend_event arrives() const { return arrives_; }
    Load* load() const { return load_; }                         // under way, or not known to have finished
    bool load_queued() const { return load_queued_; }            // workers have parts of it: they will call back

    bool dirty() const { return dirty_; }                        // a block of it is dirty in ring pages
    Writing writing() const { return writing_; }
    sh_backend_event written_back() const { return written_back_; }   // not 0: its pages may be overwritten after this
    bool landing() const { return landing_; }                    // pinned sources may get their bytes until `written_back` has come

private:
    friend class Contents;
    friend class Changes;
    friend class Registry;   // counts the units that are not ready

    uint64_t serial_ = 0;
    uint64_t used_streams_ = 0;
    uint64_t last_use_ = 0;
    uint32_t own_valid_ = 0;
    uint32_t ring_present_ = 0;
    uint8_t hindrances_ = kMissing;
    bool dirty_ = false;
    bool load_queued_ = false;
    bool landing_ = false;
    Writing writing_ = Writing::none;
    uint32_t updates_ = 0;             // blocks whose sources are being changed
    Load* load_ = nullptr;
    sh_backend_event written_back_ = 0, arrives_ = 0;
    std::vector<UnitUse> uses_;
};

// What every acquire touches beside the state: with its first half one cache line.
struct UnitHold {
    uint32_t held = 0;               // views of its blocks
    uint32_t ring_pages = 0;         // streamed pages [own.size(), own.size() + ring_pages) lie at (ring_offset + k) % R
    Memory memory = Memory::none;    // what lies behind its addresses
    bool whole = false;              // SH_BLOCK_WHOLE
    bool unordered = false;          // SH_BLOCK_UNORDERED
    bool straight = false;           // its loads are copies from one piece of memory and need no workers
    bool live = false;
    bool announced = false;          // an acquire was told SH_NOT_READY: the engine has come to it and asks again
    bool bringing = false;           // a caller is seeing to its load, and may have given up the mutex
};

// What is loaded together and owns whole pages of addresses: one block, or several small neighbours.
struct alignas(64) Unit : UnitHold, UnitState {
    uint64_t address = 0;
    uint64_t bytes = 0;
    uint32_t pages = 0;
    uint32_t first_block = kNone;
    uint32_t block_count = 0;
    uint32_t ring_offset = 0;
    uint64_t protections = 0;        // of all its blocks
    uint32_t range = kNone;          // the address range that it lies in
    std::vector<sh_backend_page> own;   // resident prefix, or all pages of an unordered unit; mapped

    bool plain_release() const { return ready() && !dirty() && memory == Memory::planned && ring_pages == 0; }
};

}  // namespace stagehand::core
