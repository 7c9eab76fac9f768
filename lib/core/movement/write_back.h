// WriteBack: copies what the engine changed on the device back to its sources before the memory is used for anything else.
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
#include "base/status.h"
#include "core/movement/load.h"
#include "core/memory/changes.h"
#include "core/memory/registry.h"
#include "core/memory/stream_table.h"
#include "transfer/staging/staging_engine.h"

namespace stagehand::core {

// All methods are called with the runtime's mutex held.
class WriteBack {
public:
    WriteBack(BackendDevice& device, transfer::StagingEngine& staging, Registry& registry, Changes& changes, StreamTable& streams,
              std::mutex& mutex, std::condition_variable& changed, sh_runtime_stats& stats, const std::string& runtime_name);
    ~WriteBack();

    Status open();   // makes the device-to-host stream
    sh_stream stream() const { return stream_; }

    using Part = Changes::Part;
    // Begins to write what is dirty of the unit's blocks that nobody holds: in its ring pages, or all. On failure it stays dirty; and
    // while workers still write older bytes, which would come after these.
    Status begin(Unit& unit, Part part);
    // Waits until workers have no write-back of the unit, with the mutex given up meanwhile; the failure of one.
    Status wait(Unit& unit, std::unique_lock<std::mutex>& lock);
    // Writes what is dirty of these blocks and waits until their sources hold it, with the mutex given up meanwhile; blocks that are gone
    // are passed over. SH_ERROR_BUSY where one is dirty and held.
    Status flush(std::span<const uint32_t> blocks, std::unique_lock<std::mutex>& lock);
    // The same for all blocks of a unit.
    Status flush(const Unit& unit, std::unique_lock<std::mutex>& lock);
    // Whether flush() would find nothing to do.
    bool is_flushed(Unit& unit, const Block& block);
    // The engine may change the unit, which it holds, on the stream from now on, and a write-back that still reads it must not see
    // that: orders the stream after it, or waits; SH_NOT_READY where it would have to wait and may not.
    Status order_after(Unit& unit, sh_stream stream, bool may_wait, std::unique_lock<std::mutex>& lock, bool* out_waited);
    // Waits until no worker writes for this runtime.
    void drain(std::unique_lock<std::mutex>& lock);
    Status synchronize() { return device_.stream_synchronize(stream_); }

    bool has_failure() const { return !failure_.ok(); }
    // The failure of a write-back that nobody waited for; told once.
    Status take_failure() { return std::exchange(failure_, Status()); }

private:
    struct Store {
        WriteBack* owner = nullptr;
        uint32_t unit = 0;
        transfer::StagedStore staged;
    };

    static void store_read(void* context, transfer::StagedStore& staged);
    static void store_finished(void* context, transfer::StagedStore& staged, const Status& status);
    Store& take();
    Status issue(Unit& unit, Store& store);
    Status collect(Unit& unit, Store& store);
    Status submit(Unit& unit, Store& store);

    BackendDevice& device_;
    transfer::StagingEngine& staging_;
    Registry& registry_;
    Changes& changes_;
    StreamTable& streams_;
    std::mutex& mutex_;
    std::condition_variable& changed_;
    sh_runtime_stats& stats_;
    const std::string& runtime_name_;   // for the trace
    sh_stream stream_ = SH_STREAM_HOST;
    uint32_t pending_ = 0;
    Status failure_;
    std::vector<std::unique_ptr<Store>> stores_;
    std::vector<Store*> idle_;
};

}  // namespace stagehand::core
