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
#include "core/device/copy_lane.h"
#include "core/device/link_arbiter.h"
#include "core/memory/changes.h"
#include "core/memory/registry.h"
#include "core/memory/stream_table.h"
#include "core/movement/load.h"
#include "transfer/staging/staging_engine.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods that do not say otherwise.
class WriteBack {
public:
    WriteBack(Device& device, Registry& registry, Changes& changes, StreamTable& streams, std::mutex& mutex,
              std::condition_variable& changed, sh_runtime_stats& stats, const std::string& runtime_name);

    Status open() { return lane_.open(); }
    CopyLane& lane() { return lane_; }  // of the copies

    using Part = Changes::Part;
    // Begins to write the dirty bytes of the unit's blocks that nobody holds: those in ring pages, or all. The bytes
    // stay dirty after a failure. They also stay dirty while workers still write older bytes, because these would
    // arrive after the new ones.
    Status begin(Unit& unit, Part part);
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
    // Waits until nothing that was begun reads or writes a unit. The mutex is given up until workers have ended.
    Status finish(std::unique_lock<std::mutex>& lock);

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
        transfer::WaitSet waited;
    };

    static void store_read(void* context, transfer::StagedStore& staged);
    static void store_finished(void* context, transfer::StagedStore& staged, const Status& status);
    Store& take();
    Status issue(Unit& unit, Store& store);
    void collect(Unit& unit, Store& store);
    Status submit(Unit& unit, Store& store);
    void write_again(Unit& unit, Status failure);

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
    CopyLane lane_;
    uint32_t pending_ = 0;  // stores that workers have
    Status failure_;
    Recycled<Store> stores_;
};

}  // namespace stagehand::core
