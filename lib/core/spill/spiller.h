// Spiller: the saved tensors of one training job. It decides what leaves, and hands each call of the interface on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <stagehand/spill.h>

#include "base/status.h"
#include "core/device/device.h"
#include "core/spill/copies.h"
#include "core/spill/spill_lanes.h"
#include "core/spill/spiller_options.h"
#include "policy/departures.h"
#include "policy/restore_order.h"
#include "policy/watermarks.h"
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
    Status collect(sh_stream stream, bool all, std::span<sh_ticket> tickets, uint64_t* out_count);
    Status restore(sh_ticket ticket, uint64_t address, sh_stream stream);
    Status upcoming(uint64_t used, std::span<sh_ticket> tickets, uint64_t* out_count);
    Status prefetch(std::span<const sh_ticket> tickets, const uint64_t* addresses, sh_stream stream);

    Status ticket_info(sh_ticket ticket, sh_ticket_info* out);
    Status release(sh_ticket ticket);

    Status trim(uint64_t* freed_bytes);
    Status start_telemetry(const char* path) { return log_.start(path); }
    Status stop_telemetry() { return log_.stop(); }
    void stats(sh_spiller_stats* out);

private:
    // The step under way, or the last one.
    struct Step {
        uint64_t number = 0;  // the engine's
        bool open = false;
        std::vector<SavedCopy*> copies;  // by their numbers in order_; null: ended
        sh_spiller_stats before = {};
        uint64_t began_at = 0;  // position of the link that the copies come back through
    };

    Status find(sh_ticket ticket, Ticket** out);
    Status watch_use(uint64_t told);
    policy::MemoryInUse memory() const {
        return {used_, copies_.bytes().leaving, copies_.bytes().kept, prefetched_bytes_, use_peak_};
    }
    Status share(SavedCopy& copy, uint64_t offset, sh_stream stream, uint32_t flags, sh_ticket* out);
    void make_room();
    void leave_early();
    bool has_time(uint32_t ordinal, uint64_t before) const;
    bool leave(SavedCopy& copy);
    void stay_after_failure(SavedCopy& copy, const Status& why);
    bool has_room(uint64_t bytes, uint64_t copies) const;
    Status collect_finished();
    Status collect_beyond_bounds(sh_stream stream, bool all, uint64_t* waited_for);
    Status hand_out(sh_stream stream, uint64_t waited_for, std::span<sh_ticket> tickets, uint64_t* out_count);
    Status put_away(SavedCopy& copy);
    Status bring_back(SavedCopy& copy, uint64_t address);
    Status join(SavedCopy& copy, uint64_t address, sh_stream stream);
    void end_prefetch(SavedCopy& copy);
    void leave_streams(const Ticket& ticket);
    Status end_copy(std::unique_ptr<SavedCopy> copy, bool named);
    Status let_go(const SavedCopy& copy, bool named);
    void forget_step();
    void forget_what_ended();

    std::shared_ptr<Device> device_;
    const SpillerOptions options_;
    transfer::ClassPool pool_;
    SpillLanes lanes_;
    Copies copies_;
    policy::Watermarks watermarks_;
    policy::Departures departures_;
    policy::RestoreOrder order_;
    telemetry::SpillLog log_;
    Step step_;
    std::vector<sh_ticket> named_;  // the tickets that collect() has not handed out yet
    // Of tickets that have ended, while the lanes are not settled.
    std::vector<std::unique_ptr<transfer::PoolBuffer>> in_use_;
    sh_spiller_stats counters_ = {};  // only those that the spiller counts itself
    uint64_t used_ = 0;               // device memory in use, as far as the last call told
    uint64_t use_peak_ = 0;           // the most of it in this step, before anything came back
    uint64_t prefetched_bytes_ = 0;   // that no restore has taken yet
    uint32_t prefetches_ = 0;
};

}  // namespace stagehand::core
