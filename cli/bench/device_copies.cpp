#include "bench/device_copies.h"

#include <cstring>

#include "library.h"

namespace stagehand::cli::bench {

std::unique_ptr<DeviceCopies> DeviceCopies::open(sh_device* device, std::string* reason) {
    const sh_device_caps caps = device_capabilities(device);
    std::unique_ptr<CudaDriver> driver;
    if ((caps.flags & SH_DEVICE_HOST_ADDRESSABLE) == 0) {
        driver = CudaDriver::open(caps.name, reason);
        if (!driver) return nullptr;
    }
    return std::unique_ptr<DeviceCopies>(new DeviceCopies(std::move(driver)));
}

void DeviceCopies::to_device(std::uint64_t to, const void* from, std::uint64_t bytes, int times) const {
    if (driver_) {
        driver_->copy_to_device(to, from, bytes, times);
        return;
    }
    for (int i = 0; i < times; ++i) std::memcpy(reinterpret_cast<void*>(to), from, bytes);
}

void DeviceCopies::to_host(void* to, std::uint64_t from, std::uint64_t bytes, int times) const {
    if (driver_) {
        driver_->copy_to_host(to, from, bytes, times);
        return;
    }
    for (int i = 0; i < times; ++i) std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
}

}  // namespace stagehand::cli::bench
