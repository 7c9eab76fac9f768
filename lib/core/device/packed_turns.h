// PackedTurns: queues the programs that pack elements into host memory, or unpack them.
#pragma once

#include <cstdint>
#include <span>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/device/device.h"
#include "transfer/lane/lane.h"

namespace stagehand::core {

// A program that begins when the one before has ended finds the GPU taken by the engine's work meanwhile, and the link
// idles until that has ended. So two streams take turns, and the next program has its place before the link is free.
// One caller at a time.
class PackedTurns {
public:
    PackedTurns(Device& device, transfer::Direction direction) : device_(device), direction_(direction) {}
    ~PackedTurns();
    PackedTurns(const PackedTurns&) = delete;
    PackedTurns& operator=(const PackedTurns&) = delete;

    // Takes what copy() needs, which it takes itself otherwise.
    Status open();
    // After the events. The lane waits for it. `*out_queued`: something was queued, which a failure does not take back.
    Status copy(sh_stream lane, const sh_backend_tiles& tiles, std::span<const sh_backend_event> after,
                bool* out_queued);
    // Waits on the host for all of them, also for those that the lane could not be told of.
    Status synchronize();

private:
    struct Side {
        transfer::Lane lane;
        sh_backend_event done = 0;
    };
    static constexpr size_t kSides = 2;

    Status open(Side& side);

    Device& device_;
    const transfer::Direction direction_;
    Side sides_[kSides];
    size_t next_ = 0;
};

}  // namespace stagehand::core
