// Offloader: decides which saved tensors leave the device, begins their copies, and tells the engine which memory it
// may have back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <stagehand/spill.h>

#include "base/status.h"
#include "core/device/device.h"
#include "core/spill/copies.h"
#include "core/spill/memory_watch.h"
#include "core/spill/spill_lanes.h"
#include "core/spill/spill_step.h"
#include "core/spill/spiller_options.h"
#include "transfer/host/class_pool.h"

namespace stagehand::core {

// The spiller's mutex guards it.
class Offloader {
public:
    Offloader(Device& device, const SpillerOptions& options, transfer::ClassPool& pool, SpillLanes& lanes,
              Copies& copies, MemoryWatch& memory, SpillStep& step, sh_spiller_stats& counters)
        : links_(device.links()),
          options_(options),
          pool_(pool),
          lanes_(lanes),
          copies_(copies),
          memory_(memory),
          step_(step),
          counters_(counters) {}

    // Sends away what is beyond the limits, and what is foreseen to leave.
    void make_room();
    // Afterwards the copy is not `kept` any more, whether this succeeds or not.
    bool leave(SavedCopy& copy);
    // Makes the next note_away() one that cannot fail.
    void make_room_to_name() { make_room_for_one(named_); }
    // The ticket is of a copy that is away.
    void note_away(sh_ticket ticket) { named_.push_back(ticket); }
    Status collect(sh_stream stream, bool all, std::span<sh_ticket> tickets, uint64_t* out_count);

private:
    void leave_early();
    void stay_after_failure(SavedCopy& copy, const Status& why);
    bool has_room(uint64_t bytes, uint64_t copies) const;
    Status collect_finished();
    Status collect_beyond_bounds(sh_stream stream, bool all, uint64_t* waited_for);
    Status hand_out(sh_stream stream, uint64_t waited_for, std::span<sh_ticket> tickets, uint64_t* out_count);
    Status put_away(SavedCopy& copy);

    Links& links_;
    const SpillerOptions& options_;
    transfer::ClassPool& pool_;
    SpillLanes& lanes_;
    Copies& copies_;
    MemoryWatch& memory_;
    SpillStep& step_;
    sh_spiller_stats& counters_;
    std::vector<sh_ticket> named_;  // the tickets that collect() has not handed out yet
};

}  // namespace stagehand::core
