// Loader: begins loads of units, on the straight route or through the staging engine, and follows them until they are
// done.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include <stagehand/telemetry.h>

#include "backend/backend_device.h"
#include "base/recycled.h"
#include "base/status.h"
#include "core/device/device.h"
#include "core/device/event_pool.h"
#include "core/memory/changes.h"
#include "core/memory/contents.h"
#include "core/memory/registry.h"
#include "core/memory/ring.h"
#include "core/movement/load.h"
#include "core/movement/load_routes.h"
#include "transfer/carrier/carrier.h"
#include "transfer/staging/staging_engine.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class Loader {
public:
    Loader(Device& device, transfer::Carrier& carrier, transfer::Unpacker& unpacker, Registry& registry, Ring& ring,
           Contents& contents, Changes& changes, EventPool& events, std::mutex& mutex, std::condition_variable& changed,
           sh_runtime_stats& stats, const std::string& runtime_name);
    ~Loader();

    Status open(Device& device) { return carrier_.open(device.lanes()); }
    sh_stream stream() const { return carrier_.stream(); }  // of the loader's copies
    transfer::CopyMeter& meter() { return meter_; }         // of the copies from pinned memory

    // A model streams from now on: takes what other ways need to bring a part of its loads.
    void get_ready() { carrier_.get_ready(); }
    // Gives that back. No load is under way. Fails if the device fails.
    Status rest() { return carrier_.rest(); }
    double speed_beside() const { return carrier_.speed_beside(); }

    // Begins to load all missing bytes of the unit. Contents must have said that nothing is in the way. The copies wait
    // until the last uses of the pages have ended. Earlier deadlines go first. After a failure nothing is under way,
    // and the missing bytes are undefined.
    Status begin(Unit& unit, uint64_t deadline_ns);

    // Does the same for the missing pages of the unit's own and for its first `ring_pages` streamed pages. Only for
    // units whose loads need no workers. The remaining missing bytes may be loaded while this load is under way.
    Status begin_part(Unit& unit, uint64_t deadline_ns, uint32_t ring_pages);

    // Waits until the last copy of the unit's load has been issued. Returns the load's failure, if any. The mutex is
    // given up meanwhile.
    Status wait_issued(Unit& unit, std::unique_lock<std::mutex>& lock, uint64_t deadline_ns);
    // Waits on the host until the unit's issued load has finished. The mutex is given up meanwhile.
    Status wait_done(Unit& unit, std::unique_lock<std::mutex>& lock);
    // Waits for the load, and also for the copies that failed loads have left in flight. After that, nothing that was
    // issued reads the unit's sources or writes its memory.
    Status wait_quiet(Unit& unit, std::unique_lock<std::mutex>& lock);
    // True if wait_quiet() would not have to wait.
    bool is_quiet(Unit& unit);
    // The stream waits for the unit's issued load before it uses the unit.
    Status order_before(Unit& unit, sh_stream stream);
    // Drops an issued load if it has finished. Returns true if no load is left.
    bool settle(Unit& unit, Status* failure);

    // Nobody wants the bytes of the unit's issued load any more. A load that is still under way counts as broken off,
    // because it reads the sources.
    void leave(Unit& unit);

    // Finds out which issued loads have finished, for the trace.
    void settle_all();

    // Brings the packed chunks of the unit that are to stay on the device, and are not there.
    Status bring_kept(Unit& unit);

    // Finds out whether loads that were believed are right: their units are loaded again when they are needed. Never
    // waits.
    void look();
    uint64_t times_wrong() const { return carrier_.times_wrong(); }  // how often some were not
    // That bytes which may have been used were not right, once.
    Status take_failure();

    // Cancels a queued load, so that its pages can be used for something else. Waits while a worker handles the load.
    void cancel(Unit& unit, std::unique_lock<std::mutex>& lock);
    // Cancels or awaits the queued loads, until no worker has a load of this runtime.
    void drain(std::unique_lock<std::mutex>& lock);
    // Records the event after all copies that were queued.
    Status finish(sh_backend_event done) { return carrier_.finish(done); }
    // Waits on the host for all of them.
    Status synchronize();
    // synchronize() has succeeded while the caller held the mutex, and no worker has a load.
    void note_over();

    uint32_t queued() const { return queued_; }
    const Status& last_failure() const { return last_failure_; }

private:
    static void staged_finished(void* context, transfer::StagedLoad& staged, const Status& status);

    Load& take();
    void give(Unit& unit);
    void find_missing(Unit& unit, Load& load, uint32_t ring_pages);
    void tell_link(Load& load, uint64_t deadline_ns);
    Status begin_trip(Unit& unit, Load& load);
    void end_trip(Unit& unit, transfer::Trip trip, bool whole);
    void look_back();
    void lose(Unit& unit);
    Status issue(Unit& unit, Load& load, uint64_t deadline_ns);
    Status complete(Unit& unit, Load& load);
    void note_delivery(Unit& unit, const Load& load);
    void fail(Unit& unit, Load& load, Status status);  // of a load that was not issued whole
    void lose_sight(Unit& unit, Load& load, Status status);
    void note_failure(Load& load, Status status);

    BackendDevice& device_;
    transfer::Carrier& carrier_;
    transfer::Unpacker& unpacker_;
    transfer::StagingEngine& staging_;
    LinkArbiter& link_;
    Registry& registry_;
    Ring& ring_;
    Contents& contents_;
    Changes& changes_;
    EventPool& events_;
    std::mutex& mutex_;
    std::condition_variable& changed_;
    sh_runtime_stats& stats_;
    const std::string& runtime_name_;  // for the trace
    bool told_ = true;                 // see take_failure()
    uint64_t times_wrong_ = 0;         // when look_back() looked last
    uint32_t queued_ = 0;
    // Loads that ended half way: no event stands for the copies that they issued.
    uint64_t broken_off_ = 0;
    uint64_t known_over_ = 0;  // the number of these loads whose copies have finished
    uint64_t followed_ = 0;    // the number of them that all later copies come after
    Status last_failure_;
    Recycled<Load> loads_;
    LoadRoutes routes_;  // of the load that is being issued
    transfer::CopyMeter meter_;
};

}  // namespace stagehand::core
