// PoolMemory: contiguous device memory, with addresses, made of pages of a device's pool.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device/page_pool.h"

namespace stagehand::core {

// Not thread-safe.
class PoolMemory {
public:
    PoolMemory(BackendDevice& device, PagePool& pool) : device_(device), pool_(pool) {}
    ~PoolMemory();
    PoolMemory(const PoolMemory&) = delete;
    PoolMemory& operator=(const PoolMemory&) = delete;

    // There is none yet. On failure nothing is held, unless the driver refuses to take it back.
    Status take(uint64_t pages);
    // Gives the memory back, if there is any. Nothing uses it any more. On a device that maps pages, the addresses stay
    // reserved, and the next memory of the same size has them again.
    Status free();
    // The device may use the memory for ever.
    void abandon() { count_ = reserved_ = 0; }

    uint64_t page_bytes() const { return pool_.page_bytes(); }
    uint64_t pages() const { return count_; }
    uint64_t bytes() const { return count_ * pool_.page_bytes(); }
    uint64_t address() const { return address_; }

private:
    Status map(uint64_t pages);
    Status free_range();

    BackendDevice& device_;
    PagePool& pool_;
    std::vector<sh_backend_page> pages_;
    uint64_t address_ = 0, count_ = 0;
    uint64_t reserved_ = 0;  // pages at the address
    bool mapped_ = false;
};

}  // namespace stagehand::core
