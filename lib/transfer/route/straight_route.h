// StraightRoute: the commands of a load whose sources the device reads by itself. It cuts and joins the copies.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "transfer/route/command.h"
#include "transfer/route/staged_extent.h"
#include "transfer/source/segment.h"

namespace stagehand::transfer {

class StraightRoute {
public:
    void clear();
    // Adds bytes [inside, inside + bytes) of the segment, which belong at the device address.
    void add(const Segment& segment, uint64_t inside, uint64_t device, uint64_t bytes, Waits waits);
    // Moves small copies to `staged` if there are many, because a worker that gathers them into a few large copies is
    // faster.
    void leave_small(std::vector<StagedExtent>* staged);
    // Commands are in the order in which they were added.
    std::span<const Command> commands() const { return commands_; }

private:
    struct Origin {
        const Segment* segment = nullptr;  // null if the command spans several segments
        uint64_t inside = 0;
    };

    std::vector<Command> commands_;
    std::vector<Origin> origins_;  // the origin of each command
};

}  // namespace stagehand::transfer
