// DeviceReader: reads device memory into host memory of the library, and waits for it.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "core/device/copy_lane.h"
#include "transfer/host/pinned_memory.h"

namespace stagehand::core {

// The host memory is not freed if the driver may write to it later.
class DeviceReader {
public:
    explicit DeviceReader(CopyLane& lane) : lane_(lane) {}

    static constexpr uint64_t kMostBytes = 4 << 20;
    // Reads so many bytes at most. They stay until the next call.
    Status read(uint64_t address, uint64_t bytes, std::span<const char>* out);

private:
    CopyLane& lane_;  // to the host
    transfer::PinnedMemory memory_;
};

}  // namespace stagehand::core
