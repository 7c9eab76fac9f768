// Command: a copy that a route issues to a lane, and the events that the lane waits for before it.
#pragma once

#include <cstdint>
#include <vector>

#include <stagehand/backend.h>

namespace stagehand::transfer {

// A range of indices into a list of events.
struct Waits {
    uint32_t first = 0, count = 0;
};

struct Command {
    enum class Kind : uint8_t { to_device, on_device, to_host };
    Kind kind = Kind::to_device;
    bool joins = false;   // it continues the command before it at both ends, so one copy may do both
    uint64_t device = 0;  // address on the device: to_host reads it, the other kinds write it
    uint64_t other = 0;   // address of the other end: in host memory, or in device memory for on_device
    uint64_t bytes = 0;   // 0 means that the command has waits only
    Waits waits;          // before the copy

    uint64_t end() const { return device + bytes; }
};

// The events of a list that a lane already waits for. One wait for each event is enough, because a stream keeps its
// order.
class WaitSet {
public:
    void clear(size_t count) { bits_.assign((count + 63) / 64, 0); }
    bool has(uint32_t index) const { return bits_[index / 64] >> (index % 64) & 1; }
    void add(uint32_t index) { bits_[index / 64] |= uint64_t(1) << (index % 64); }
    bool has_all(Waits waits) const {
        for (uint32_t i = waits.first; i < waits.first + waits.count; i++)
            if (!has(i)) return false;
        return true;
    }

private:
    std::vector<uint64_t> bits_;
};

}  // namespace stagehand::transfer
