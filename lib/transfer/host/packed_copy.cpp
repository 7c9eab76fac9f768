#include "transfer/host/packed_copy.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "codec/packer.h"
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
        if (!last().packed_bytes && unpackable_ == Unpackable::leave) return Status();
        const uint64_t bytes = last().packed_bytes ? last().packed_bytes : last().bytes;
        if (bytes >= kSmallPacked) {
            auto memory = std::make_shared<PinnedMemory>();
            SH_TRY(PinnedMemory::allocate(device_, bytes, memory.get()));
            write(static_cast<uint8_t*>(memory->data()));
            place(copies_.back(), memory, 0);
            copies_.back().pinned_piece = memory->piece_bytes();
            return Status();
        }
        if (small_end_ + bytes > kSharedCopies) SH_TRY(place_small());
        small_.push_back({copies_.size() - 1, small_end_, std::vector<uint8_t>(bytes)});
        write(small_.back().bytes.data());
        small_end_ = (small_end_ + bytes + kPackedCopyAlignment - 1) / kPackedCopyAlignment * kPackedCopyAlignment;
        return Status();
    }

    // Called at the end.
    Status place_small() {
        if (small_.empty()) return Status();
        auto memory = std::make_shared<PinnedMemory>();
        SH_TRY(PinnedMemory::allocate(device_, small_end_, memory.get()));
        for (const Small& one : small_) {
            std::ranges::copy(one.bytes, static_cast<uint8_t*>(memory->data()) + one.offset);
            place(copies_[one.copy], memory, one.offset);
        }
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
        const auto format = static_cast<codec::FloatFormat>(segment.format);
        const bool whole = segment.bytes % codec::fields_of(format).bytes() == 0;  // a part may end within an element
        if (!device_.unpacks() || !whole || segment.bytes >= codec::kMostContents) return Status();
        SH_TRY(packer_.pack(format, segment.pointer, segment.bytes, threads_));
        const bool pays =
            static_cast<double>(packer_.frame_bytes()) <= kPackingPays * static_cast<double>(segment.bytes);
        copies_.back().segment.packed_bytes = pays ? packer_.frame_bytes() : 0;
        copies_.back().segment.packed_offset = 0;
        return Status();
    }
    const sh_segment& last() const { return copies_.back().segment; }
    // Writes what becomes of the last segment.
    void write(uint8_t* to) const {
        if (last().packed_bytes)
            packer_.write(to, threads_);
        else
            std::memcpy(to, last().pointer, last().bytes);
    }
    static void place(PackedCopy& copy, const std::shared_ptr<PinnedMemory>& memory, uint64_t offset) {
        copy.segment.pointer = static_cast<char*>(memory->data()) + offset;
        copy.memory = memory;
    }

    BackendDevice& device_;
    const Unpackable unpackable_;
    std::vector<PackedCopy>& copies_;
    const uint32_t threads_ = std::min(platform::usable_cores(), kMostPackers);
    codec::Packer packer_;  // of the last segment
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
