// WriteBack: copies what the engine changed on the device back to its sources before the memory is used for anything else.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <stagehand/telemetry.h>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/contents/load.h"
#include "core/device/event_pool.h"
#include "core/memory/registry.h"
#include "core/memory/stream_table.h"
#include "transfer/staging/staging_engine.h"

namespace stagehand::core {

// All methods are called with the runtime's mutex held.
class WriteBack {
public:
    WriteBack(BackendDevice& device, transfer::StagingEngine& staging, Registry& registry, StreamTable& streams, EventPool& events,
              std::mutex& mutex, std::condition_variable& changed, sh_runtime_stats& stats, const std::string& runtime_name);
    ~WriteBack();

    Status open();   // makes the device-to-host stream
    sh_stream stream() const { return stream_; }

    enum class Part { ring, all };
    // Begins to write the dirty bytes of a unit that nobody holds: those in its ring pages, or all. On failure they stay dirty; and
    // while workers still write older ones, which would come after them.
    Status begin(Unit& unit, Part part);
    // Waits until the unit's sources hold what was begun to be written, with the mutex given up meanwhile.
    Status wait(Unit& unit, std::unique_lock<std::mutex>& lock);
    // The same for all that is dirty, if nobody holds the unit.
    Status flush(Unit& unit, std::unique_lock<std::mutex>& lock);
    bool is_dirty(const Unit& unit) { return is_dirty(unit, Part::all); }
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
    struct Dirt {   // what of a block is being written
        uint32_t block = 0;
        bool own = false, ring = false;
    };
    struct Store {
        WriteBack* owner = nullptr;
        uint32_t unit = 0;
        std::vector<Dirt> dirt;
        transfer::StagedStore staged;
    };

    static void store_read(void* context, transfer::StagedStore& staged);
    static void store_finished(void* context, transfer::StagedStore& staged, const Status& status);
    Status collect(Unit& unit, Part part, Store& store);
    void take_dirt(Unit& unit, Part part, Store& store);
    void give_back_dirt(Unit& unit, const Store& store);
    bool is_dirty(const Unit& unit, Part part);

    BackendDevice& device_;
    transfer::StagingEngine& staging_;
    Registry& registry_;
    StreamTable& streams_;
    EventPool& events_;
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
