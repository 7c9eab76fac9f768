#include "core/movement/direct_copies.h"

#include <algorithm>

namespace stagehand::core {
namespace {

// A load of many small pinned segments is faster gathered by a worker into few copies than copied one by one.
constexpr uint64_t kSmallCopy = 128 << 10;
constexpr size_t kManyCopies = 16;

}  // namespace

void DirectCopies::add(Unit& unit, uint64_t offset, uint64_t end, Load::Waits waits, std::vector<transfer::StagedExtent>* staged) {
    for (Block& block : registry_.blocks_of(unit)) {
        if (!block.id) continue;
        const auto& segments = block.detail->segments;
        auto segment = std::partition_point(segments.begin(), segments.end(),
                                            [&](const Segment& s) { return s.offset + s.bytes <= offset; });
        for (; segment != segments.end() && segment->offset < end; ++segment) {
            const uint64_t from = std::max(offset, segment->offset), to = std::min(end, segment->offset + segment->bytes);
            const uint64_t inside = from - segment->offset;
            if (segment->direct) add_segment(*segment, inside, unit.address + from, to - from, waits);
            else staged->push_back({&segment->source, inside, unit.address + from, to - from, waits.first, waits.count});
        }
    }
}

void DirectCopies::add_segment(const Segment& segment, uint64_t inside, uint64_t address, uint64_t bytes, Load::Waits waits) {
    const char* const from = static_cast<const char*>(segment.source.pointer) + inside;
    Copy* const last = copies_.empty() ? nullptr : &copies_.back();
    if (segment.joined && inside == 0 && last && last->to + last->bytes == address && last->waits.first == waits.first) {
        last->bytes += bytes;
        last->segment = nullptr;
        return;
    }
    const uint64_t piece = segment.pinned_piece ? segment.pinned_piece : UINT64_MAX;
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t count = std::min(bytes - done, piece - (inside + done) % piece);
        copies_.push_back({from + done, address + done, count, &segment, inside + done, waits, segment.source.kind == SH_SOURCE_DEVICE});
        done += count;
    }
}

void DirectCopies::gather_small(std::vector<transfer::StagedExtent>* staged) {
    const auto small = [](const Copy& copy) { return copy.segment && !copy.on_device && copy.bytes < kSmallCopy; };
    if (static_cast<size_t>(std::count_if(copies_.begin(), copies_.end(), small)) <= kManyCopies) return;
    for (const Copy& copy : copies_)
        if (small(copy))
            staged->push_back({&copy.segment->source, copy.segment_offset, copy.to, copy.bytes, copy.waits.first, copy.waits.count});
    std::erase_if(copies_, small);
    std::sort(staged->begin(), staged->end(), [](const auto& a, const auto& b) { return a.device_address < b.device_address; });
}

Status DirectCopies::issue(sh_stream stream, std::span<const sh_backend_event> waits, uint64_t* pieces, uint64_t* bytes) {
    uint32_t waited = 0;   // waits are in the order of the copies: each is made once
    for (const Copy& copy : copies_) {
        const uint32_t last = copy.waits.first + copy.waits.count;
        for (uint32_t i = std::max(waited, copy.waits.first); i < last; i++) SH_TRY(device_.stream_wait_event(stream, waits[i]));
        waited = std::max(waited, last);
        if (copy.on_device) SH_TRY(device_.copy_on_device(stream, copy.to, reinterpret_cast<uint64_t>(copy.from), copy.bytes));
        else SH_TRY(device_.copy_to_device(stream, copy.to, copy.from, copy.bytes));
        (*pieces)++;
        *bytes += copy.bytes;
    }
    return Status();
}

}  // namespace stagehand::core
