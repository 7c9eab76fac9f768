// The internals of the staging engine: its queues, its slots and its workers.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/status.h"
#include "transfer/source/reader.h"
#include "transfer/staging/bell.h"
#include "transfer/staging/jobs.h"
#include "transfer/staging/progress.h"
#include "transfer/staging/slot_issue.h"
#include "transfer/staging/slots.h"
#include "transfer/staging/staging_engine.h"
#include "transfer/staging/staging_size.h"
#include "transfer/staging/workers.h"

namespace stagehand::transfer {

using LoadProgress = StagedLoad::Progress;
using StoreProgress = StagedStore::Progress;

// Runs a callback that must not throw. If the callback throws anyway, the worker logs it and goes on.
template <class Callback>
void call_back(Callback&& callback) noexcept {
    const Status thrown = no_throw([&] { return callback(), Status(); });
    if (!thrown.ok()) log_line(SH_LOG_ERROR, "staging: a callback threw an exception: %s", thrown.text());
}

// One mutex guards the queues and the slots. No thread holds it while it reads a source, calls the device or runs a
// callback, except for allocations of the engine's own bookkeeping. So submitters wait for list operations at most.
class StagingEngine::Impl {
public:
    Impl(BackendDevice& device, const StagingOptions& options);
    ~Impl();

    bool in_child() const { return workers_.in_child(); }
    Status submit(StagedLoad& load);
    Status submit(StagedStore& store);
    bool cancel(StagedLoad& load);
    void hurry(StagedLoad& load, uint64_t deadline_ns);

    const StagingSize& size() const { return size_; }
    uint64_t bytes() const { return figures_.bytes.load(std::memory_order_relaxed); }
    uint64_t pinned_bytes() const { return figures_.pinned_bytes.load(std::memory_order_relaxed); }
    uint32_t threads() const { return figures_.threads.load(std::memory_order_relaxed); }

private:
    using Lock = Bell::Lock;

    // The next work of a worker.
    struct Task {
        enum Kind { kStop, kEndLoad, kEndStore, kEmpty, kRead, kStore } kind = kStop;
        LoadProgress* load = nullptr;
        StoreProgress* store = nullptr;
        Slot* slot = nullptr;  // may be null for kStore
    };

    // Starting and stopping (staging_engine.cpp).
    Status start();
    void stop_workers();
    void work();
    void revive();

    // Choosing work (staging_worker.cpp). The caller holds the lock.
    Task next_task(Lock& lock);
    bool choose(Task* task);
    bool choose_load(Task* task);
    uint64_t piece_bytes(const LoadProgress& load) const;
    bool choose_store(Task* task);
    bool starving() const;
    bool more_to_do() const;
    bool store_may_have_slot() const;
    bool wants_look() const;
    bool look(Lock& lock);
    void give_up_queues(const Status& status);
    void wake_if_starving();
    void pause(Lock& lock);

    // Loads (staging_load.cpp). The caller holds the lock. The functions give it up while they call the device.
    void read_piece(Lock& lock, const Task& task, Reader& reader, std::vector<ReadRequest>& requests);
    void issue_ready(Lock& lock, LoadProgress& load);
    void fail(LoadProgress& load, const Status& status);
    void drop(Slot& slot);
    void settle(Slot& slot, SlotUse use);
    bool in_turn(const LoadProgress& load, const Slot& slot) const;
    void end_if_done(Lock& lock, LoadProgress& load);
    void end(Lock& lock, LoadProgress& load);
    void end_soon(LoadProgress& load);

    // Stores (staging_store.cpp). The caller holds the lock. The functions give it up while they call the device.
    void issue_store_step(Lock& lock, const Task& task);
    Status issue_some(StoreProgress& store, Slot* slot, SlotIssued* issued);
    Status begin_store(StoreProgress& store);
    void fail(StoreProgress& store, const Status& status);
    void finish_issue(Lock& lock, StoreProgress& store);
    void empty_slot(Lock& lock, Slot& slot);
    bool store_done(const StoreProgress& store) const;
    void end_if_done(Lock& lock, StoreProgress& store);
    void end(Lock& lock, StoreProgress& store);

    struct Counts {
        uint32_t parked = 0;       // slots that were read and wait for earlier pieces
        uint32_t readers = 0;      // workers that read a source
        uint32_t store_slots = 0;  // slots that are taken for stores
    };

    struct Figures {
        std::atomic<uint64_t> bytes = 0, pinned_bytes = 0;
        std::atomic<uint32_t> threads = 0;
    };

    BackendDevice& device_;
    StraightCarrier own_link_{device_};  // of loads without a carrier
    const StagingSize size_;
    Figures figures_;

    std::mutex start_mutex_;  // one thread starts the engine
    std::atomic<bool> started_ = false;
    Workers workers_;

    std::mutex mutex_;
    Bell bell_;  // rung when there may be work for a worker
    bool stopping_ = false;
    bool looking_ = false;        // a worker asks the device which copies have finished
    uint32_t look_pause_us_ = 0;  // pause before the next look
    Counts counts_;
    Status lost_;  // why all slots are unusable
    Slots slots_;
    Jobs<LoadProgress> loads_;
    Jobs<StoreProgress> stores_;
    std::vector<Slot*> arrived_;  // slots of stores whose bytes have arrived
};

}  // namespace stagehand::transfer
