// How the packed ranges of a load arrive: copies of neighbouring chunks, and what is unpacked from each copy. Pure
// functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/frame_index.h"
#include "transfer/route/command.h"
#include "transfer/source/segment.h"
#include "transfer/unpack/kept_chunks.h"

namespace stagehand::transfer {

// A range of a load whose source is a packed tensor. It may be written after `waits`.
struct PackedExtent {
    const Segment* segment = nullptr;
    uint64_t inside = 0;  // offset in the segment
    uint64_t device = 0;  // address of the first byte
    uint64_t bytes = 0;
    Waits waits;
};

// Whole chunks that are unpacked at once. Or a chunk of which only a part is wanted, or whose place is no multiple of
// 16: it goes through scratch memory.
struct Unpacking {
    uint64_t chunk = 0;
    uint32_t chunks = 1;
    bool through_scratch = false;
    uint64_t skip = 0, bytes = 0;  // in the contents of the chunks: what is wanted
    uint64_t device = 0;           // its address
};

// Chunks that cross the link at once, or are on the device.
struct Batch {
    const Segment* segment = nullptr;
    uint64_t chunk = 0, chunks = 0;
    uint64_t begin() const { return segment->source.packed->begin_of(chunk); }  // in the packed tensor
    uint64_t bytes() const { return segment->source.packed->begin_of(chunk + chunks) - begin(); }
    uint64_t kept_at = 0;                    // the device address if they are kept chunks
    bool is_there = false;                   // these are on the device
    uint32_t turn = 0;                       // the last of the load's extents that it writes to
    uint32_t first_extent = 0, extents = 0;  // all of them, in Batches::by_place
    uint32_t first_unpacking = 0, unpackings = 0;
};

// Keeps its capacity, so that a steady state allocates nothing.
struct Batches {
    std::vector<Batch> list;  // in the order of the extents that they write to
    std::vector<Unpacking> unpackings;
    std::vector<uint32_t> by_place;  // the extents, by segment and offset

    void clear() {
        list.clear();
        unpackings.clear();
        by_place.clear();
    }
};

// A chunk that lies in several extents is brought once, in the turn of the last of them. So an extent whose pages are
// free early waits for no other one, but for its edges. `room` is the size of a slot. Each chunk has room in it. Chunks
// that are on the device need no slot.
void cut_batches(std::span<const PackedExtent> extents, uint64_t room, Batches* out);

// Divides a range into the parts whose chunks are on the device, and the others.
void divide(const PackedExtent& extent, std::vector<PackedExtent>* there, std::vector<PackedExtent>* missing);

// The part of a source that the link carries, as a fraction: bytes of the chunks / bytes of the contents.
double packed_part(const Source& source);

}  // namespace stagehand::transfer
