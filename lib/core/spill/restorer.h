// Restorer: brings saved tensors back into memory of the engine, when they are asked for or ahead of that.
#pragma once

#include <cstdint>
#include <span>

#include <stagehand/spill.h>

#include "base/status.h"
#include "core/device/device.h"
#include "core/spill/copies.h"
#include "core/spill/memory_watch.h"
#include "core/spill/spill_lanes.h"
#include "core/spill/spill_step.h"
#include "core/spill/spiller_options.h"

namespace stagehand::core {

// The spiller's mutex guards it.
class Restorer {
public:
    Restorer(Device& device, const SpillerOptions& options, SpillLanes& lanes, Copies& copies, MemoryWatch& memory,
             SpillStep& step, sh_spiller_stats& counters)
        : links_(device.links()),
          options_(options),
          lanes_(lanes),
          copies_(copies),
          memory_(memory),
          step_(step),
          counters_(counters) {}

    Status restore(SavedCopy& copy, uint64_t address, sh_stream stream);
    // The tickets that may come back next.
    uint64_t upcoming(uint64_t used, std::span<sh_ticket> tickets);
    Status prefetch(std::span<const sh_ticket> tickets, const uint64_t* addresses, sh_stream stream);
    void end_prefetch(SavedCopy& copy);

private:
    bool has_time(const SavedCopy& copy, uint64_t before) const;
    Status bring_back(SavedCopy& copy, uint64_t address);
    Status join(SavedCopy& copy, uint64_t address, sh_stream stream);

    Links& links_;
    const SpillerOptions& options_;
    SpillLanes& lanes_;
    Copies& copies_;
    MemoryWatch& memory_;
    SpillStep& step_;
    sh_spiller_stats& counters_;
};

}  // namespace stagehand::core
