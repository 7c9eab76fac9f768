// Spiller: the saved tensors of one training job.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <stagehand/spill.h>

#include "base/status.h"
#include "core/device/device.h"
#include "core/spill/copies.h"
#include "core/spill/memory_watch.h"
#include "core/spill/offloader.h"
#include "core/spill/restorer.h"
#include "core/spill/spill_lanes.h"
#include "core/spill/spill_step.h"
#include "core/spill/spiller_options.h"
#include "telemetry/spill_log.h"
#include "transfer/host/class_pool.h"

namespace stagehand::core {

// The methods are the calls of spill.h. The handle's mutex guards the object, so a call that waits on the host (with
// SH_STREAM_HOST, checksums or trim()) holds up the calls of other threads.
class Spiller {
public:
    static Status create(std::shared_ptr<Device> device, const SpillerOptions& options, std::shared_ptr<Spiller>* out);
    Spiller(std::shared_ptr<Device> device, const SpillerOptions& options);
    // Waits for the copies under way.
    ~Spiller();
    Spiller(const Spiller&) = delete;
    Spiller& operator=(const Spiller&) = delete;

    sh_stream name_of_stream(sh_stream handle) const {
        return handle == device_->backend().thread_handle() ? thread_stream::of_this_thread() : handle;
    }

    Status begin_step(uint64_t step);
    Status end_step();

    Status spill(const sh_saved_tensor& tensor, sh_stream stream, uint32_t flags, sh_ticket* out);
    Status collect(sh_stream stream, bool all, std::span<sh_ticket> tickets, uint64_t* out_count) {
        return offloader_.collect(stream, all, tickets, out_count);
    }
    Status restore(sh_ticket ticket, uint64_t address, sh_stream stream);
    uint64_t upcoming(uint64_t used, std::span<sh_ticket> tickets) { return restorer_.upcoming(used, tickets); }
    Status prefetch(std::span<const sh_ticket> tickets, const uint64_t* addresses, sh_stream stream) {
        return restorer_.prefetch(tickets, addresses, stream);
    }

    Status ticket_info(sh_ticket ticket, sh_ticket_info* out);
    Status release(sh_ticket ticket);

    Status trim(uint64_t* freed_bytes);
    Status start_telemetry(const char* path) { return log_.start(path); }
    Status stop_telemetry() { return log_.stop(); }
    void stats(sh_spiller_stats* out);

private:
    Status share(SavedCopy& copy, uint64_t offset, sh_stream stream, uint32_t flags, sh_ticket* out);
    void leave_streams(const Ticket& ticket);
    Status end_copy(std::unique_ptr<SavedCopy> copy, bool named);
    Status let_go(const SavedCopy& copy, bool named);

    std::shared_ptr<Device> device_;
    const SpillerOptions options_;
    transfer::ClassPool pool_;
    SpillLanes lanes_;
    Copies copies_;
    MemoryWatch memory_;
    SpillStep step_;
    sh_spiller_stats counters_ = {};  // only those that the spiller counts itself
    sh_spiller_stats before_step_ = {};
    Offloader offloader_;
    Restorer restorer_;
    telemetry::SpillLog log_;
    // Of tickets that have ended, while the lanes are not settled.
    std::vector<std::unique_ptr<transfer::PoolBuffer>> in_use_;
};

}  // namespace stagehand::core
