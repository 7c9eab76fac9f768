// Loader: begins loads of units, straight from pinned sources or through the staging engine, and follows them until they are done.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <stagehand/telemetry.h>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/movement/direct_copies.h"
#include "core/movement/load.h"
#include "core/device/event_pool.h"
#include "core/memory/changes.h"
#include "core/memory/contents.h"
#include "core/memory/registry.h"
#include "core/memory/ring.h"
#include "transfer/staging/staging_engine.h"

namespace stagehand::core {

// All methods are called with the runtime's mutex held.
class Loader {
public:
    Loader(BackendDevice& device, transfer::StagingEngine& staging, Registry& registry, Ring& ring, Contents& contents, Changes& changes,
           EventPool& events, std::mutex& mutex, std::condition_variable& changed, sh_runtime_stats& stats, const std::string& runtime_name);
    ~Loader();

    Status open();   // makes the copy stream
    sh_stream copy_stream() const { return copy_stream_; }

    // Begins to load all that is missing of the unit, of which Contents says that nothing is in the way, once the last uses of its pages
    // have ended. Earlier deadlines go first. On failure nothing is under way and the missing bytes are undefined.
    Status begin(Unit& unit, uint64_t deadline_ns);

    // The same for what is missing of the unit's own pages, and of the first so many of its streamed ones. Only of units whose loads need
    // no workers: what is missing then may be begun while this is under way.
    Status begin_part(Unit& unit, uint64_t deadline_ns, uint32_t ring_pages);

    // Waits until the last copy of the unit's load has been issued, with the mutex given up meanwhile; the load's failure, if any.
    Status wait_issued(Unit& unit, std::unique_lock<std::mutex>& lock, uint64_t deadline_ns);
    // Waits on the host until the unit's issued load has finished, with the mutex given up meanwhile.
    Status wait_done(Unit& unit, std::unique_lock<std::mutex>& lock);
    // The same, and for what failed loads have left in flight: nothing that was issued reads the unit's sources, or writes its memory, any more.
    Status wait_quiet(Unit& unit, std::unique_lock<std::mutex>& lock);
    // Whether that is so already.
    bool is_quiet(Unit& unit);
    // Drops an issued load if it has finished; true: none is left.
    bool settle(Unit& unit, Status* failure);

    // Notices which issued loads have finished, for the trace.
    void settle_all();

    // Gives up a queued load so that its pages can be used otherwise; waits while a worker is at it.
    void cancel(Unit& unit, std::unique_lock<std::mutex>& lock);
    // Waits until no worker has a load of this runtime.
    void drain(std::unique_lock<std::mutex>& lock);
    // Waits on the host for all that was issued to the copy stream.
    Status synchronize();

    uint32_t queued() const { return queued_; }
    const Status& last_failure() const { return last_failure_; }

private:
    static void staged_finished(void* context, transfer::StagedLoad& staged, const Status& status);

    Load& take();
    void give(Unit& unit);
    void find_missing(Unit& unit, Load& load, uint32_t ring_pages);
    Status issue(Unit& unit, Load& load, uint64_t deadline_ns);
    Status complete(Unit& unit, Load& load);
    void fail(Unit& unit, Load& load, Status status);

    BackendDevice& device_;
    transfer::StagingEngine& staging_;
    Registry& registry_;
    Ring& ring_;
    Contents& contents_;
    Changes& changes_;
    EventPool& events_;
    std::mutex& mutex_;
    std::condition_variable& changed_;
    sh_runtime_stats& stats_;
    const std::string& runtime_name_;   // for the trace
    sh_stream copy_stream_ = SH_STREAM_HOST;
    uint32_t queued_ = 0;
    uint64_t broken_off_ = 0;      // loads that ended half way: no event stands for the copies that they issued
    uint64_t known_over_ = 0;      // of them, those whose copies have finished
    Status last_failure_;
    std::vector<std::unique_ptr<Load>> loads_;
    std::vector<Load*> idle_;
    DirectCopies copies_;          // of the load that is being issued
};

}  // namespace stagehand::core
