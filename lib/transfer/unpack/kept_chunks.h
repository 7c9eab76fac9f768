// KeptChunks: the chunks of a packed tensor that stay on the device packed. The link brings each of them once.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include <stagehand/backend.h>

#include "transfer/source/source.h"

namespace stagehand::transfer {

// Of each period of neighbouring chunks, the first ones are kept. So a load has chunks to unpack while the link brings
// others, and the link has chunks to bring all the time. The device unpacks as many at once as a call takes.
inline constexpr uint32_t kKeptPeriod = SH_BACKEND_UNPACK_CHUNKS;

struct ChunkRange {
    uint64_t begin = 0, end = 0;
};
// The chunks that hold bytes [from, source.bytes) of the segment.
ChunkRange chunks_from(const Source& source, uint64_t from);

class KeptChunks {
public:
    // Keeps `of_period` chunks of each period, from 1 to kKeptPeriod, in device memory from `*address` on. Moves the
    // address to the end of that memory.
    KeptChunks(const Source& source, ChunkRange range, uint32_t of_period, uint64_t* address);

    bool equals(ChunkRange range, uint32_t of_period) const {
        return range.begin == range_.begin && range.end == range_.end && of_period == of_period_;
    }
    ChunkRange range() const { return range_; }
    // The device address of the chunk, or 0 if it is not kept.
    uint64_t address_of(uint64_t chunk) const;
    // Whether the kept chunk was brought. Work that is queued on the stream of loads from then on finds it.
    bool is_there(uint64_t chunk) const { return there_[chunk - range_.begin].load(std::memory_order_acquire); }
    void set_there(uint64_t chunk) {
        if (!there_[chunk - range_.begin].exchange(true, std::memory_order_acq_rel)) missing_--;
    }
    // All kept chunks are to be brought again.
    void forget();
    bool any_missing() const { return missing_ != 0; }  // of the kept chunks

private:
    const Source source_;
    const ChunkRange range_;
    const uint32_t of_period_;
    std::vector<uint64_t> periods_;  // the address of the first chunk of each
    std::unique_ptr<std::atomic<bool>[]> there_;
    std::atomic<uint64_t> missing_ = 0;
};

// Adds the packed bytes of each place in a period to `bytes_at`, which has kKeptPeriod entries.
void add_by_place(const Source& source, ChunkRange range, uint64_t* bytes_at);

}  // namespace stagehand::transfer
