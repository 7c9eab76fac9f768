// WriteBack: copies the engine's changes on the device back to the sources, before the memory is used for anything
// else.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <stagehand/telemetry.h>

#include "backend/backend_device.h"
#include "base/recycled.h"
#include "base/status.h"
#include "core/device/link_arbiter.h"
#include "core/memory/changes.h"
#include "core/memory/registry.h"
#include "core/memory/stream_table.h"
#include "core/movement/load.h"
#include "core/movement/store_lane.h"
#include "transfer/staging/staging_engine.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods that do not say otherwise.
class WriteBack {
public:
    WriteBack(Device& device, Registry& registry, Changes& changes, StreamTable& streams, std::mutex& mutex,
              std::condition_variable& changed, sh_runtime_stats& stats, const std::string& runtime_name);

    // The caller holds no runtime's mutex.
    Status open() { return lane_.open(runtime_name_); }
    sh_stream stream() const { return lane_.stream(); }  // of the copies of the device's own link
    // Helpers copy a part of the write-backs from now on, if a step may change so many bytes that it is worth their
    // memory. rest() lets them go. No write-back is under way in both.
    Status take_helpers(uint64_t bytes) { return lane_.take_helpers(bytes); }
    Status rest() { return lane_.rest(); }
    uint64_t helped_bytes() const { return lane_.helped_bytes(); }
    double helpers_speed() { return lane_.helpers_speed(); }

    using Part = Changes::Part;
    // Begins to write the dirty bytes of the unit's blocks that nobody holds: those in ring pages, or all. The bytes
    // stay dirty after a failure. They also stay dirty while workers or helpers still write older bytes, because these
    // would arrive after the new ones. So they do while a helper that has failed may still write some source: a caller
    // that may wait calls begin_or_wait(), which either begins or waits for that helper, and asks again.
    Status begin(Unit& unit, Part part);
    Status begin_or_wait(Unit& unit, Part part, std::unique_lock<std::mutex>& lock);
    // Begins what begin() has left because of such a helper.
    Status begin_left(std::unique_lock<std::mutex>& lock);
    // Finds out which write-backs of helpers have come. Never waits. What a failed helper had a part in is written
    // again, at once or at the next need.
    void look();
    // Waits until nothing but the device writes back the unit. Returns the failure of a write-back. The mutex is given
    // up meanwhile.
    Status wait(Unit& unit, std::unique_lock<std::mutex>& lock);
    // Writes the dirty bytes of these blocks and waits until their sources hold them. The mutex is given up meanwhile.
    // Blocks that are gone are skipped. Returns SH_ERROR_INVALID_STATE if a block is dirty and held.
    Status flush(std::span<const uint32_t> blocks, std::unique_lock<std::mutex>& lock);
    // Does the same for all blocks of a unit.
    Status flush(const Unit& unit, std::unique_lock<std::mutex>& lock);
    // True if flush() would find nothing to do.
    bool is_flushed(Unit& unit, const Block& block);
    // The engine holds the unit and may change it on the stream from now on. A write-back that still reads the unit
    // must not see the change. So this call makes the stream wait for the write-back, or waits itself. Returns
    // SH_NOT_READY if it would have to wait and may not.
    Status order_after(Unit& unit, sh_stream stream, bool may_wait, std::unique_lock<std::mutex>& lock,
                       bool* out_waited);
    // Waits until no worker writes for this runtime.
    void drain(std::unique_lock<std::mutex>& lock);
    // Waits on the host for the copies that were queued. Needs no mutex.
    Status synchronize() { return lane_.synchronize(); }
    uint64_t begun() const { return numbers_; }  // number of write-backs
    // synchronize() has succeeded since so many write-backs were begun. `*out_again`: others were begun meanwhile, for
    // bytes that had become dirty again. Returns an error if a failed helper may still write a source. The mutex is
    // given up only after a failure.
    Status land_until(uint64_t begun, std::unique_lock<std::mutex>& lock, bool* out_again);
    // Waits until nothing that was begun reads or writes a unit. The mutex is given up until workers, and helpers that
    // have failed, have ended. A failed helper that may still write sources is no failure of this call: its write-backs
    // stay, and give_up() ends them as if they had succeeded, and notes a failure.
    Status finish(std::unique_lock<std::mutex>& lock);
    void give_up();

    // Records the event after the copies that are queued on the device.
    Status record(sh_backend_event event) { return lane_.record(event); }

    bool has_failure() const { return !failure_.ok(); }
    // The failure of a write-back that nobody waited for. It is reported once.
    Status take_failure() { return std::exchange(failure_, Status()); }

private:
    struct Store {
        WriteBack* owner = nullptr;
        uint32_t unit = 0;
        std::vector<transfer::Command> straight;
        transfer::StagedStore staged;
        StoreLane::Trace helped;  // what helpers have of it
        uint64_t number = 0;      // grows with each store
        bool wrong = false;       // a helper has failed meanwhile
    };

    static void store_read(void* context, transfer::StagedStore& staged);
    static void store_finished(void* context, transfer::StagedStore& staged, const Status& status);
    Store& take();
    Status issue(Unit& unit, Store& store, bool* out_lost);
    void collect(Unit& unit, Store& store);
    Status submit(Unit& unit, Store& store);
    void write_again(Unit& unit, Status failure);
    Store* landing_of(const Unit& unit) const;
    Status wait_to_land(Unit& unit, std::unique_lock<std::mutex>& lock);
    bool land(Store& store);
    Status end_doubts(std::unique_lock<std::mutex>& lock);

    BackendDevice& device_;
    transfer::StagingEngine& staging_;
    LinkArbiter& link_;
    Registry& registry_;
    Changes& changes_;
    StreamTable& streams_;
    std::mutex& mutex_;
    std::condition_variable& changed_;
    sh_runtime_stats& stats_;
    const std::string& runtime_name_;  // for the trace
    StoreLane lane_;
    uint32_t pending_ = 0;  // stores that workers have
    Status failure_;
    Recycled<Store> stores_;
    std::vector<Store*> landing_;  // that helpers have a part in, in the order of their copies
    uint64_t numbers_ = 0;
};

}  // namespace stagehand::core
