#include "transfer/unpack/kept_chunks.h"

#include <algorithm>

#include "codec/frame_index.h"

namespace stagehand::transfer {
namespace {

uint64_t bytes_of_chunks(const Source& source, uint64_t begin, uint64_t end) {
    return source.packed->begin_of(end) - source.packed->begin_of(begin);
}

}  // namespace

ChunkRange chunks_from(const Source& source, uint64_t from) {
    if (from >= source.bytes) return {};
    const uint64_t size = source.packed->chunk_bytes();
    return {(source.packed_offset + from) / size, (source.packed_offset + source.bytes - 1) / size + 1};
}

KeptChunks::KeptChunks(const Source& source, ChunkRange range, uint32_t of_period, uint64_t* address)
    : source_(source),
      range_(range),
      of_period_(of_period),
      there_(std::make_unique<std::atomic<bool>[]>(range.end - range.begin)) {
    for (uint64_t first = range.begin; first < range.end; first += kKeptPeriod) {
        periods_.push_back(*address);
        const uint64_t end = std::min(range.end, first + of_period);
        *address += bytes_of_chunks(source, first, end);
        missing_ += end - first;
    }
}

uint64_t KeptChunks::address_of(uint64_t chunk) const {
    if (chunk < range_.begin || chunk >= range_.end) return 0;
    const uint64_t place = (chunk - range_.begin) % kKeptPeriod, period = (chunk - range_.begin) / kKeptPeriod;
    return place < of_period_ ? periods_[period] + bytes_of_chunks(source_, chunk - place, chunk) : 0;
}

void KeptChunks::forget() {
    for (uint64_t chunk = range_.begin; chunk < range_.end; chunk++)
        if (there_[chunk - range_.begin].exchange(false, std::memory_order_acq_rel)) missing_++;
}

void add_by_place(const Source& source, ChunkRange range, uint64_t* bytes_at) {
    for (uint64_t chunk = range.begin; chunk < range.end; chunk++)
        bytes_at[(chunk - range.begin) % kKeptPeriod] += bytes_of_chunks(source, chunk, chunk + 1);
}

}  // namespace stagehand::transfer
