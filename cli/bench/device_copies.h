// Copies between host memory and any address of a device, as an engine makes them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <stagehand/stagehand.h>

#include "bench/cuda_driver.h"

namespace stagehand::cli::bench {

// Uses CUDA's driver, or the processor if it can address the memory of the device. The calls copy `times` times, and
// return when the copies have ended.
class DeviceCopies {
public:
    // Null if neither is possible; `reason` then says why.
    static std::unique_ptr<DeviceCopies> open(sh_device* device, std::string* reason);

    void to_device(std::uint64_t to, const void* from, std::uint64_t bytes, int times = 1) const;
    void to_host(void* to, std::uint64_t from, std::uint64_t bytes, int times = 1) const;
    bool by_processor() const { return driver_ == nullptr; }

private:
    explicit DeviceCopies(std::unique_ptr<CudaDriver> driver) : driver_(std::move(driver)) {}

    std::unique_ptr<CudaDriver> driver_;
};

}  // namespace stagehand::cli::bench
