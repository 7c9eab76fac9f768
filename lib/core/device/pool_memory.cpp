#include "core/device/pool_memory.h"

#include "base/once_more.h"

namespace stagehand::core {

PoolMemory::~PoolMemory() {
    if (free().ok()) (void)free_range().ok();
}

Status PoolMemory::take(uint64_t pages) {
    Status status = map(pages);
    if (!status.ok()) (void)free().ok();
    return status;
}

Status PoolMemory::map(uint64_t pages) {
    const uint64_t page = pool_.page_bytes();
    if (!device_.maps_pages()) {
        SH_TRY(pool_.allocate(pages, &address_));
        count_ = pages;
        return Status();
    }
    SH_TRY(pool_.take(pages, &pages_));
    count_ = pages;
    if (reserved_ != pages) {
        SH_TRY(free_range());
        SH_TRY(device_.range_reserve(pages * page, page, &address_));
        reserved_ = pages;
    }
    SH_TRY(device_.pages_map(address_, page, pages, pages_.data()));
    mapped_ = true;
    return Status();
}

Status PoolMemory::free() {
    if (!count_) return Status();
    const uint64_t page = pool_.page_bytes();
    if (!device_.maps_pages()) {
        SH_TRY(once_more([&] { return pool_.release(address_, count_); }));
    } else {
        if (mapped_) SH_TRY(once_more([&] { return device_.pages_unmap(address_, page, count_); }));
        mapped_ = false;
        pool_.give(pages_.data(), pages_.size());
        pages_.clear();
    }
    count_ = 0;
    return Status();
}

Status PoolMemory::free_range() {
    if (reserved_) SH_TRY(once_more([&] { return device_.range_free(address_, reserved_ * pool_.page_bytes()); }));
    address_ = reserved_ = 0;
    return Status();
}

}  // namespace stagehand::core
