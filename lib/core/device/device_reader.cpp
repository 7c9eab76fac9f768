#include "core/device/device_reader.h"

#include "base/once_more.h"

namespace stagehand::core {

Status DeviceReader::read(uint64_t address, uint64_t bytes, std::span<const char>* out) {
    if (memory_.bytes() < bytes) SH_TRY(transfer::PinnedMemory::allocate(device_, bytes, &memory_));
    SH_TRY(device_.copy_to_host(stream_, memory_.data(), address, bytes));
    Status ended = once_more([&] { return device_.stream_synchronize(stream_); });
    if (!ended.ok()) memory_.abandon();
    *out = {static_cast<const char*>(memory_.data()), ended.ok() ? bytes : 0};
    return ended;
}

}  // namespace stagehand::core
