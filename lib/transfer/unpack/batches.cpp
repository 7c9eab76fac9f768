#include "transfer/unpack/batches.h"

#include <algorithm>
#include <numeric>

#include <stagehand/backend.h>

namespace stagehand::transfer {
namespace {

constexpr uint64_t kUnpackAlignment = 16;  // of addresses that a backend unpacks to

static_assert(codec::kChunkElements == SH_BACKEND_CHUNK_ELEMENTS);

// Extents that continue each other, so that a chunk may lie in several of them: [first, end) of Batches::by_place.
struct Stretch {
    size_t first = 0, end = 0;
    uint64_t begin_byte = 0, end_byte = 0;  // in the contents of the tensor
    uint64_t device = 0;
};

class Cutter {
public:
    Cutter(std::span<const PackedExtent> extents, uint64_t room, Batches& out)
        : extents_(extents), room_(room), out_(out) {}

    void cut() {
        for (size_t at = 0; at < extents_.size();) {
            const Stretch stretch = stretch_at(at);
            cut(stretch);
            at = stretch.end;
        }
    }

private:
    const PackedExtent& placed(size_t i) const { return extents_[out_.by_place[i]]; }
    uint64_t begin_of(size_t i) const { return placed(i).segment->source.packed_offset + placed(i).inside; }
    uint64_t end_of(size_t i) const { return begin_of(i) + placed(i).bytes; }

    Stretch stretch_at(size_t first) const {
        Stretch stretch = {first, first + 1, begin_of(first), end_of(first), placed(first).device};
        while (stretch.end < extents_.size() && placed(stretch.end).segment == placed(first).segment &&
               begin_of(stretch.end) == stretch.end_byte)
            stretch.end_byte = end_of(stretch.end++);
        return stretch;
    }

    void cut(const Stretch& stretch) {
        const Segment* const segment = placed(stretch.first).segment;
        const codec::FrameIndex& index = *segment->source.packed;
        const uint64_t size = index.chunk_bytes(), last = (stretch.end_byte - 1) / size;
        size_t extent = stretch.first;
        for (uint64_t chunk = stretch.begin_byte / size; chunk <= last; chunk++) {
            // The extents in which the chunk lies.
            while (end_of(extent) <= chunk * size) extent++;
            size_t past = extent;
            uint32_t turn = 0;
            for (; past < stretch.end && begin_of(past) < (chunk + 1) * size; past++)
                turn = std::max(turn, out_.by_place[past]);
            Batch* batch = out_.list.empty() ? nullptr : &out_.list.back();
            const KeptChunks* const kept = segment->kept.get();
            const uint64_t kept_at = kept ? kept->address_of(chunk) : 0;
            const bool is_there = kept_at && kept->is_there(chunk);
            if (!batch || batch->segment != segment || batch->chunk + batch->chunks != chunk || batch->turn != turn ||
                !continues(*batch, kept_at, is_there) || batch->chunks == SH_BACKEND_UNPACK_CHUNKS ||
                (!is_there && index.begin_of(chunk + 1) - batch->begin() > room_)) {
                batch = &out_.list.emplace_back();
                batch->segment = segment;
                batch->chunk = chunk;
                batch->turn = turn;
                batch->kept_at = kept_at;
                batch->is_there = is_there;
                batch->first_extent = static_cast<uint32_t>(extent);
                batch->first_unpacking = static_cast<uint32_t>(out_.unpackings.size());
            }
            batch->chunks++;
            batch->extents = static_cast<uint32_t>(past) - batch->first_extent;
            add(stretch, index, chunk, *batch);
        }
    }

    static bool continues(const Batch& batch, uint64_t kept_at, bool is_there) {
        if (!batch.kept_at || !kept_at) return !batch.kept_at && !kept_at;
        return is_there == batch.is_there && kept_at == batch.kept_at + batch.bytes();
    }

    void add(const Stretch& stretch, const codec::FrameIndex& index, uint64_t chunk, Batch& batch) {
        const uint64_t first = chunk * index.chunk_bytes();
        const uint64_t last = std::min(first + index.chunk_bytes(), index.contents_bytes());
        Unpacking one;
        one.chunk = chunk;
        one.skip = std::max(stretch.begin_byte, first) - first;
        one.bytes = std::min(stretch.end_byte, last) - first - one.skip;
        one.device = stretch.device + (first + one.skip - stretch.begin_byte);
        one.through_scratch = one.bytes < last - first || one.device % kUnpackAlignment != 0;
        Unpacking* const before = batch.unpackings ? &out_.unpackings.back() : nullptr;
        if (before && !before->through_scratch && !one.through_scratch) {
            before->chunks++;
            before->bytes += one.bytes;
        } else {
            out_.unpackings.push_back(one);
            batch.unpackings++;
        }
    }

    const std::span<const PackedExtent> extents_;
    const uint64_t room_;
    Batches& out_;
};

}  // namespace

void cut_batches(std::span<const PackedExtent> extents, uint64_t room, Batches* out) {
    out->list.clear();
    out->unpackings.clear();
    out->by_place.resize(extents.size());
    std::iota(out->by_place.begin(), out->by_place.end(), 0u);
    std::ranges::sort(out->by_place, [&](uint32_t a, uint32_t b) {
        const PackedExtent &one = extents[a], &other = extents[b];
        return one.segment != other.segment ? one.segment < other.segment : one.inside < other.inside;
    });
    Cutter(extents, room, *out).cut();
    std::ranges::stable_sort(out->list, {}, &Batch::turn);
}

void divide(const PackedExtent& extent, std::vector<PackedExtent>* there, std::vector<PackedExtent>* missing) {
    const Source& source = extent.segment->source;
    const KeptChunks* const kept = extent.segment->kept.get();
    if (!kept) return missing->push_back(extent);
    const uint64_t size = source.packed->chunk_bytes();
    for (uint64_t done = 0; done < extent.bytes;) {
        const auto is_there = [&](uint64_t chunk) { return kept->address_of(chunk) && kept->is_there(chunk); };
        const uint64_t at = source.packed_offset + extent.inside + done, first = at / size;
        uint64_t chunk = first + 1;
        while (chunk * size < at + (extent.bytes - done) && is_there(chunk) == is_there(first)) chunk++;
        const uint64_t bytes = std::min(extent.bytes - done, chunk * size - at);
        (is_there(first) ? there : missing)
            ->push_back({extent.segment, extent.inside + done, extent.device + done, bytes, extent.waits});
        done += bytes;
    }
}

double packed_part(const Source& source) {
    const codec::FrameIndex& index = *source.packed;
    if (!source.bytes) return 1;
    const uint64_t first = source.packed_offset / index.chunk_bytes();
    const uint64_t last = (source.packed_offset + source.bytes - 1) / index.chunk_bytes();
    return static_cast<double>(index.begin_of(last + 1) - index.begin_of(first)) / static_cast<double>(source.bytes);
}

}  // namespace stagehand::transfer
