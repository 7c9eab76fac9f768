#include "core/memory/unpack_memory.h"

#include <algorithm>

#include "base/once_more.h"

namespace stagehand::core {
namespace {

constexpr uint64_t kMostBytes = 32 << 20;
constexpr uint64_t kPartOfShare = 128;  // the memory is this part of the share, between its limits
constexpr uint64_t kLeastShare = 8;     // and the share must be so many times as large

}  // namespace

uint64_t UnpackMemory::pages_for(uint64_t share_pages, uint64_t page_bytes) {
    const uint64_t part = share_pages / kPartOfShare * page_bytes;
    const uint64_t bytes = std::max(transfer::Unpacker::least_bytes(), std::min(kMostBytes, part));
    const uint64_t pages = (bytes + page_bytes - 1) / page_bytes;
    return pages <= share_pages / kLeastShare ? pages : 0;
}

Status UnpackMemory::take(const UnpackPlan& plan) {
    Status status = map(plan.all_pages());
    // Weights that stay are unpacked faster than the link brings any. So all of the device unpacks them.
    const bool whole_device = plan.kept_pages > 0;
    if (status.ok()) status = unpacker_.open(lanes_, address_, plan.pages * pool_.page_bytes(), whole_device);
    if (status.ok())
        plan_ = plan;
    else
        (void)free().ok();
    return status;
}

Status UnpackMemory::map(uint64_t pages) {
    const uint64_t page = pool_.page_bytes();
    if (!device_.maps_pages()) {
        SH_TRY(pool_.allocate(pages, &address_));
        count_ = pages;
        return Status();
    }
    SH_TRY(pool_.take(pages, &pages_));
    count_ = pages;
    SH_TRY(device_.range_reserve(pages * page, page, &address_));
    SH_TRY(device_.pages_map(address_, page, pages, pages_.data()));
    mapped_ = true;
    return Status();
}

Status UnpackMemory::free() {
    if (!count_) return Status();
    SH_TRY(unpacker_.close());
    const uint64_t page = pool_.page_bytes();
    if (!device_.maps_pages()) {
        SH_TRY(once_more([&] { return pool_.release(address_, count_); }));
    } else {
        if (mapped_) SH_TRY(once_more([&] { return device_.pages_unmap(address_, page, count_); }));
        mapped_ = false;
        if (address_) SH_TRY(once_more([&] { return device_.range_free(address_, count_ * page); }));
        pool_.give(pages_.data(), pages_.size());
        pages_.clear();
    }
    address_ = count_ = 0;
    plan_ = {};
    return Status();
}

}  // namespace stagehand::core
