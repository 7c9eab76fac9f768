#include "transfer/route/straight_route.h"

#include <algorithm>

namespace stagehand::transfer {
namespace {

// A load with many small pinned segments is faster if a worker gathers them into a few copies.
constexpr uint64_t kSmallCopy = 128 << 10;
constexpr size_t kManyCopies = 16;

}  // namespace

void StraightRoute::clear() {
    commands_.clear();
    origins_.clear();
}

void StraightRoute::add(const Segment& segment, uint64_t inside, uint64_t device, uint64_t bytes, Waits waits) {
    const uint64_t from = reinterpret_cast<uint64_t>(segment.source.pointer) + inside;
    Command* const last = commands_.empty() ? nullptr : &commands_.back();
    // An empty range of waits begins where the next range begins. Only `first` and `count` together tell ranges apart.
    const bool same_waits = last && last->waits.first == waits.first && last->waits.count == waits.count;
    if (segment.joined && inside == 0 && same_waits && last->end() == device) {
        last->bytes += bytes;
        origins_.back().segment = nullptr;
        return;
    }
    const auto kind = segment.source.kind == SH_SOURCE_DEVICE ? Command::Kind::on_device : Command::Kind::to_device;
    const uint64_t piece = segment.pinned_piece ? segment.pinned_piece : UINT64_MAX;
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t count = std::min(bytes - done, piece - (inside + done) % piece);
        commands_.push_back({kind, false, device + done, from + done, count, waits});
        origins_.push_back({&segment, inside + done});
        done += count;
    }
}

void StraightRoute::leave_small(std::vector<StagedExtent>* staged) {
    const auto small = [&](size_t i) {
        return origins_[i].segment && commands_[i].kind == Command::Kind::to_device && commands_[i].bytes < kSmallCopy;
    };
    size_t count = 0;
    for (size_t i = 0; i < commands_.size(); i++) count += small(i);
    if (count <= kManyCopies) return;
    size_t kept = 0;
    for (size_t i = 0; i < commands_.size(); i++) {
        const Command command = commands_[i];
        const Origin origin = origins_[i];
        if (small(i)) {
            staged->push_back({&origin.segment->source, origin.inside, command.device, command.bytes, command.waits});
            continue;
        }
        commands_[kept] = command;
        origins_[kept++] = origin;
    }
    commands_.resize(kept);
    origins_.resize(kept);
    std::sort(staged->begin(), staged->end(),
              [](const auto& a, const auto& b) { return a.device_address < b.device_address; });
}

}  // namespace stagehand::transfer
