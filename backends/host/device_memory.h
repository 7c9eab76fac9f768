// DeviceMemory: the memory of a host device. Pages are ranges of one memfd, mapped with mmap at reserved addresses.
#pragma once

#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include <stagehand/backend.h>

#include "host/host_backend.h"
#include "host/range_allocator.h"
#include "host/settings.h"
#include "platform/descriptor.h"
#include "support/page_table.h"

namespace stagehand::host {

// Thread-safe. The lock guards the bookkeeping, not the system calls. So a copy does not wait while much memory is
// mapped.
class DeviceMemory {
public:
    explicit DeviceMemory(const Settings& settings);
    // Unmaps all memory and closes the file.
    ~DeviceMemory();
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;

    sh_status open();  // makes the file; called before all other functions

    sh_status create(uint64_t page_bytes, uint64_t count, sh_backend_page* out_pages);
    sh_status destroy(uint64_t page_bytes, uint64_t count, const sh_backend_page* pages);
    sh_status reserve(uint64_t bytes, uint64_t alignment, uint64_t* out_address);
    sh_status free(uint64_t address, uint64_t bytes);
    sh_status map(uint64_t address, uint64_t page_bytes, uint64_t count, const sh_backend_page* pages);
    sh_status unmap(uint64_t address, uint64_t page_bytes, uint64_t count);

    // Fails unless every byte is mapped: pages of this device.
    sh_status check_mapped(uint64_t address, uint64_t bytes) const;
    // Fails unless a copy may use these bytes: pages of this device, or other memory of the process, since the engine's
    // own memory lies on this device too. A copy to unmapped addresses would end the process.
    sh_status check_usable(uint64_t address, uint64_t bytes) const;

    void info(uint64_t* out_free, uint64_t* out_total) const;
    void statistics(MemoryStatistics* out) const;

private:
    bool put_reservation_back(uint64_t address, uint64_t bytes);
    uint64_t offset_of(sh_backend_page page) const { return (page - 1) * granularity_; }
    sh_status take_offsets(uint64_t bytes, uint64_t count, uint64_t* out_offset);
    void give_offsets(uint64_t offset, uint64_t bytes, uint64_t count);
    sh_status fill_with_memory(uint64_t offset, uint64_t bytes) const;
    sh_status poison(uint64_t offset, uint64_t bytes) const;
    sh_status punch_runs(uint64_t page_bytes, uint64_t count, const sh_backend_page* pages);

    const uint64_t capacity_;
    const uint64_t granularity_;
    const bool poison_;
    platform::Descriptor file_;
    std::mutex spare_mutex_;
    void* spare_mapping_ = nullptr;  // see put_reservation_back()

    mutable std::shared_mutex mutex_;
    support::PageTable table_;
    RangeAllocator offsets_;
    uint64_t pages_ = 0;  // number of pages whose offsets are taken
    uint64_t file_length_ = 0;
    uint64_t current_bytes_ = 0;
    uint64_t peak_bytes_ = 0;
};

}  // namespace stagehand::host
