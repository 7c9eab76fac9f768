#include "core/device/device_reader.h"

namespace stagehand::core {

Status DeviceReader::read(uint64_t address, uint64_t bytes, std::span<const char>* out) {
    if (memory_.bytes() < bytes) SH_TRY(transfer::PinnedMemory::allocate(lane_.device(), bytes, &memory_));
    SH_TRY(lane_.copy(address, memory_.data(), bytes));
    Status ended = lane_.synchronize();
    if (!ended.ok()) memory_.abandon();
    *out = {static_cast<const char*>(memory_.data()), ended.ok() ? bytes : 0};
    return ended;
}

}  // namespace stagehand::core
