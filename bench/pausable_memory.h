// Device memory of sh_alloc() with known contents: what an engine has that pauses.
#pragma once

#include <cstdint>
#include <vector>

#include <stagehand/stagehand.h>

#include "bench/cuda_driver.h"
#include "library.h"

namespace stagehand::cli::bench {

class PausableMemory {
public:
    // Allocates memory of these sizes. The contents are random bytes, or weights if the options have a format, which
    // is SH_FORMAT_BF16. The device and the copies must outlive this object.
    PausableMemory(sh_device* device, const DeviceCopies& copies, const std::vector<std::uint64_t>& sizes,
                   const sh_alloc_options& options);
    // Frees the memory, and the host memory behind it.
    ~PausableMemory();
    PausableMemory(const PausableMemory&) = delete;
    PausableMemory& operator=(const PausableMemory&) = delete;

    // Writes contents that no earlier call has written to the same addresses.
    void write();
    // Compares every byte with what was written last. Returns the number of allocations that differ.
    std::uint64_t count_mismatches() const;

    // Speeds of the driver's own copies between this memory and pinned memory, in bytes per second.
    struct Speed {
        double to_device = 0;
        double to_host = 0;
    };
    Speed measure_copies() const;

    std::uint64_t bytes() const { return bytes_; }
    std::uint64_t allocations() const { return parts_.size(); }
    sh_occupancy_info info() const;

private:
    struct Part {
        std::uint64_t address = 0;
        std::uint64_t bytes = 0;
    };

    // Calls work(address, contents, bytes) for each piece of an allocation.
    template <typename Work>
    void for_each_piece(std::uint64_t part, Work work) const;
    void free_all() noexcept;

    sh_device* device_;
    const DeviceCopies& copies_;
    std::vector<Part> parts_;
    std::uint64_t bytes_ = 0;
    std::uint64_t round_ = 0;
    HostMemory pattern_;
    HostMemory read_;
};

}  // namespace stagehand::cli::bench
