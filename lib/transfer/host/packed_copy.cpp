#include "transfer/host/packed_copy.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "codec/frame.h"
#include "platform/host_memory.h"

namespace stagehand::transfer {
namespace {

constexpr double kPackingPays = 0.95;  // of the plain bytes
constexpr uint32_t kMostPackers = 32;
// Memory comes in huge pages, so small copies share it. The shared memory is less than the smallest piece that drivers
// register, so no copy from it spans two registrations.
constexpr uint64_t kSmallPacked = 8 << 20, kSharedCopies = 32 << 20;
constexpr uint64_t kPackedCopyAlignment = 64;

class Copier {
public:
    Copier(BackendDevice& device, Unpackable unpackable, std::vector<PackedCopy>& copies)
        : device_(device), unpackable_(unpackable), copies_(copies) {}

    Status add(const sh_segment& segment) {
        copies_.push_back({segment, nullptr, 0});
        if (segment.kind != SH_SOURCE_POINTER || !segment.format || segment.packed_bytes || !segment.bytes)
            return Status();
        SH_TRY(pack(segment));
        if (frame_.empty() && unpackable_ == Unpackable::leave) return Status();
        const uint64_t bytes = bytes_to_copy();
        if (bytes >= kSmallPacked) {
            auto memory = std::make_shared<PinnedMemory>();
            SH_TRY(PinnedMemory::allocate(device_, bytes, memory.get()));
            place(copies_.back(), memory, 0, contents());
            copies_.back().pinned_piece = memory->piece_bytes();
            return Status();
        }
        if (small_end_ + bytes > kSharedCopies) SH_TRY(place_small());
        small_.push_back({copies_.size() - 1, small_end_, {contents(), contents() + bytes}});
        small_end_ = (small_end_ + bytes + kPackedCopyAlignment - 1) / kPackedCopyAlignment * kPackedCopyAlignment;
        return Status();
    }

    // Called at the end.
    Status place_small() {
        if (small_.empty()) return Status();
        auto memory = std::make_shared<PinnedMemory>();
        SH_TRY(PinnedMemory::allocate(device_, small_end_, memory.get()));
        for (const Small& one : small_) place(copies_[one.copy], memory, one.offset, one.bytes.data());
        small_.clear();
        small_end_ = 0;
        return Status();
    }

private:
    struct Small {
        size_t copy = 0;
        uint64_t offset = 0;
        std::vector<uint8_t> bytes;
    };

    Status pack(const sh_segment& segment) {
        frame_.clear();
        const auto format = static_cast<codec::FloatFormat>(segment.format);
        const bool whole = segment.bytes % codec::fields_of(format).bytes() == 0;  // a part may end within an element
        if (!device_.unpacks() || !whole || segment.bytes >= codec::kMostContents) return Status();
        const uint32_t threads = std::min(platform::usable_cores(), kMostPackers);
        SH_TRY(codec::pack_frame(format, segment.pointer, segment.bytes, threads, &frame_));
        if (static_cast<double>(frame_.size()) > kPackingPays * static_cast<double>(segment.bytes)) frame_.clear();
        copies_.back().segment.packed_bytes = frame_.size();
        copies_.back().segment.packed_offset = 0;
        return Status();
    }
    const sh_segment& last() const { return copies_.back().segment; }
    uint64_t bytes_to_copy() const { return frame_.empty() ? last().bytes : frame_.size(); }
    const uint8_t* contents() const {
        return frame_.empty() ? static_cast<const uint8_t*>(last().pointer) : frame_.data();
    }
    static void place(PackedCopy& copy, const std::shared_ptr<PinnedMemory>& memory, uint64_t offset,
                      const uint8_t* from) {
        char* const to = static_cast<char*>(memory->data()) + offset;
        std::memcpy(to, from, copy.segment.packed_bytes ? copy.segment.packed_bytes : copy.segment.bytes);
        copy.segment.pointer = to;
        copy.memory = memory;
    }

    BackendDevice& device_;
    const Unpackable unpackable_;
    std::vector<PackedCopy>& copies_;
    std::vector<uint8_t> frame_;  // of the last segment, or empty if it is copied as it is
    std::vector<Small> small_;
    uint64_t small_end_ = 0;
};

}  // namespace

Status copy_packed(BackendDevice& device, std::span<const sh_segment> segments, Unpackable unpackable,
                   std::vector<PackedCopy>* out) {
    out->clear();
    Copier copier(device, unpackable, *out);
    for (const sh_segment& segment : segments) SH_TRY(copier.add(segment));
    return copier.place_small();
}

}  // namespace stagehand::transfer
