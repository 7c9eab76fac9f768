// Segment: a range of a unit, with its source and its route.
#pragma once

#include <cstdint>
#include <memory>

#include "transfer/source/source.h"

namespace stagehand::transfer {

class KeptChunks;
class PinnedMemory;

// The way of the bytes from a source to the device, and back.
enum class Route : uint8_t {
    straight,  // one copy of the device, from pinned memory or from device memory
    staged,    // through the pinned buffers of the staging engine, by its workers
    // A packed tensor, by the Unpacker if it is open, else staged.
    packed,         // in pinned memory: the device copies it
    packed_staged,  // elsewhere: workers read it into the pinned buffers
};

struct Segment {
    Source source;
    uint64_t offset = 0;  // in the unit
    uint64_t bytes = 0;
    Route route = Route::staged;
    bool joined = false;  // straight, and its memory continues the memory of the segment before: one copy may span both
    // Size of the pieces in which the library pinned the memory, or 0 if it did not. No copy may span two pieces.
    uint64_t pinned_piece = 0;
    std::shared_ptr<PinnedMemory> copy;  // of the library, which the source lies in: SH_BLOCK_PACK
    // Packed: the chunks that stay on the device, if any do. Loads change only which of them are there.
    std::shared_ptr<KeptChunks> kept;

    bool straight() const { return route == Route::straight; }
    bool packed() const { return route == Route::packed || route == Route::packed_staged; }
    uint64_t end() const { return offset + bytes; }
};

}  // namespace stagehand::transfer
