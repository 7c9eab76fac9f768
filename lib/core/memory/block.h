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

// What every acquire touches: one cache line. Ids are compared whole, so a free record (id 0) matches nothing.
struct alignas(64) Block {
    sh_block id = 0;
    uint64_t address = 0;
    uint64_t bytes = 0;
    uint32_t unit = kNone;
    uint32_t held = 0;
    uint32_t flags = 0;              // SH_BLOCK_*
    bool updating = false;           // between sh_source_update_begin() and _end()
    bool dirty_own = false;          // bytes in resident pages are newer than its source
    bool dirty_ring = false;         // bytes in ring pages are
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

// What is loaded together and owns whole pages of addresses: one block, or several small neighbours. The first members are what
// every acquire touches.
struct alignas(64) Unit {
    uint64_t serial = 0;             // grows with each load
    uint64_t used_streams = 0;       // bits of the stream table: streams that used it since it was last fenced
    uint32_t held = 0;               // views of its blocks
    bool ready = false;              // all bytes are there, for every stream
    bool whole = false;              // SH_BLOCK_WHOLE
    bool unordered = false;          // SH_BLOCK_UNORDERED
    bool straight = false;           // its loads are copies from one piece of memory and need no workers
    Memory memory = Memory::none;  // what lies behind its addresses
    bool live = false;
    bool announced = false;          // an acquire was told SH_NOT_READY: the engine has come to it and asks again
    bool bringing = false;           // a caller is seeing to its load, and may have given up the mutex
    bool stale = false;              // its contents are out of date: dropped when nobody holds it
    uint32_t updating = 0;           // blocks whose sources are being changed
    uint32_t own_valid = 0;          // pages from the start whose contents are there

    uint64_t address = 0;
    uint64_t bytes = 0;
    uint32_t pages = 0;
    uint32_t first_block = kNone;
    uint32_t block_count = 0;
    uint32_t ring_offset = 0;        // streamed pages [own.size(), own.size() + ring_pages) lie at (ring_offset + k) % R
    uint32_t ring_pages = 0;
    uint32_t ring_present = 0;       // of them, those whose contents are this unit's
    uint64_t protections = 0;        // of all its blocks
    uint32_t range = kNone;          // the address range that it lies in
    std::vector<sh_backend_page> own;   // resident prefix, or all pages of an unordered unit; mapped
    std::vector<UnitUse> uses;       // of its ring pages
    uint64_t last_use = 0;           // when its last view was released, counted in releases
    sh_backend_event written_back = 0;  // not 0: its ring pages may be overwritten only after this
    sh_backend_event arrives = 0;    // not 0: a launch of a graph brings its ring pages, before this
    bool being_read = false;         // by a write-back, unless `written_back` has come: new views are ordered after it
    bool read_queued = false;        // by workers, who have not recorded `written_back` yet
    bool writing_back = false;       // workers are writing its source
    bool dirty = false;              // a block of it is dirty in ring pages
    Load* load = nullptr;            // under way, or not known to have finished

    bool plain_release() const { return ready && !stale && !dirty && memory == Memory::planned && ring_pages == 0; }
    // A new view may see its bytes, once they are there.
    bool current() const { return complete() && !stale && updating == 0 && !being_read && !arrives; }
    bool complete() const { return own_valid == own.size() && ring_present == ring_pages && own.size() + ring_pages == pages; }
};

}  // namespace stagehand::core
