#include "core/movement/load_routes.h"

#include <algorithm>

#include "transfer/staging/staging_size.h"

namespace stagehand::core {

void LoadRoutes::begin(Load* load) {
    load_ = load;
    load->waited.clear(load->waits.size());
    straight_.clear();
    packed_.clear();
}

void LoadRoutes::add(Unit& unit, uint64_t offset, uint64_t end, transfer::Waits waits) {
    bool any = false;
    for (Block& block : registry_.blocks_of(unit)) {
        if (!block.id) continue;
        const auto& segments = block.detail->segments;
        auto segment = std::partition_point(segments.begin(), segments.end(),
                                            [&](const transfer::Segment& s) { return s.end() <= offset; });
        for (; segment != segments.end() && segment->offset < end; ++segment) {
            const uint64_t from = std::max(offset, segment->offset), to = std::min(end, segment->end());
            const uint64_t inside = from - segment->offset;
            any = true;
            // No worker can read for a device without contents, whose time stands still meanwhile.
            const bool plain = !unpacks() && device_.has(SH_BACKEND_CONTENTLESS);
            if (segment->straight() || plain)
                straight_.add(*segment, inside, unit.address + from, to - from, waits);
            else if (segment->route == transfer::Route::packed && unpacks())
                packed_.push_back({&*segment, inside, unit.address + from, to - from, waits});
            else if (segment->packed() && unpacks() && !unpacker_->records())
                transfer::divide({&*segment, inside, unit.address + from, to - from, waits}, &packed_,
                                 &load_->staged.packed);
            else
                load_->staged.extents.push_back({&segment->source, inside, unit.address + from, to - from, waits});
        }
    }
    if (!any) load_->rest.push_back({.waits = waits});
}

void LoadRoutes::cut_staged(uint64_t piece_bytes, uint32_t workers) {
    transfer::StagedLoad& staged = load_->staged;
    if (staged.packed.empty()) return;
    staged.unpacker = unpacker_;
    double packed = 0;
    for (const transfer::PackedExtent& extent : staged.packed)
        packed += static_cast<double>(extent.bytes) * transfer::packed_part(extent.segment->source);
    const uint64_t most = std::min(piece_bytes, unpacker_->slot_bytes());
    const uint64_t least = std::max(transfer::kLeastPart, carrier_.least_piece());
    const uint64_t room = transfer::fair_piece(static_cast<uint64_t>(packed), workers, least, most);
    transfer::cut_batches(staged.packed, room, &staged.batches);
}

Status LoadRoutes::issue_straight(sh_stream stream, transfer::CopyMeter* meter) {
    SH_TRY(carrier_.carry(load_->trip, &stream,
                          {straight_.commands(), load_->waits, &load_->waited, &load_->copied, meter}));
    return packed_.empty() ? Status() : unpacker_->issue(stream, packed_, load_->waits, &load_->waited, &load_->copied);
}

Status LoadRoutes::issue_rest(BackendDevice& device, sh_stream stream, Load* load) {
    return transfer::issue(device, stream, load->rest, load->waits, &load->waited, &load->copied);
}

}  // namespace stagehand::core
