#include "transfer/staging/staging_engine.h"

#include <cstdlib>
#include <new>

#include <sys/prctl.h>
#include <unistd.h>

#include "base/log.h"
#include "platform/host_memory.h"
#include "platform/thread.h"
#include "transfer/staging/staging_impl.h"

namespace stagehand::transfer {

StagingEngine::Impl::Impl(BackendDevice& device, const StagingOptions& options)
    : device_(device),
      size_(choose_staging_size(options, device.info(), platform::usable_cores(),
                                secure_getenv("STAGEHAND_STAGING_THREADS"))),
      threads_(size_.threads) {}

StagingEngine::Impl::~Impl() {
    stop_workers();
    ring_.free();
    for (auto& store : all_stores_) {
        if (!store->arrived) continue;
        if (Status status = device_.event_destroy(store->arrived); !status.ok())
            log_line(SH_LOG_WARNING, "%s", status.text());
    }
}

Status StagingEngine::Impl::start() {
    if (started_.load(std::memory_order_acquire)) return Status();
    std::lock_guard starting(start_mutex_);
    if (started_.load(std::memory_order_relaxed)) return Status();
    Status status;
    try {
        status = ring_.allocate(device_, size_);
        if (status.ok()) status = start_workers();
    } catch (const std::bad_alloc&) {
        status = Status(SH_ERROR_OUT_OF_HOST_MEMORY);
    }
    if (!status.ok()) {
        stop_workers();
        stopping_ = false;
        threads_.store(size_.threads, std::memory_order_relaxed);
        ring_.free();
        return status.within("staging ring");
    }
    ring_bytes_.store(ring_.bytes(), std::memory_order_relaxed);
    pinned_bytes_.store(ring_.pinned_bytes(), std::memory_order_relaxed);
    log_line(SH_LOG_INFO, "staging ring: %zu slots of %llu KiB, %u threads", ring_.slots(),
             static_cast<unsigned long long>(size_.piece_bytes >> 10), threads());
    started_.store(true, std::memory_order_release);
    return Status();
}

// Returns when each worker has told whether it can work.
Status StagingEngine::Impl::start_workers() {
    process_ = getpid();
    begin_failure_ = Status();
    for (auto* list : {&ending_loads_, &idle_loads_}) list->reserve(64);
    for (auto* list : {&ending_stores_, &idle_stores_, &straight_, &looked_}) list->reserve(64);
    arrived_.reserve(ring_.slots());
    workers_.reserve(size_.threads);
    uint32_t made = 0, reported = 0;
    Status status;
    for (; made < size_.threads; made++) {
        std::thread thread;
        status = platform::start_thread(
            "sh-staging", [this, &reported] { run_worker(&reported); }, &thread);
        if (!status.ok()) break;
        workers_.push_back(std::move(thread));
    }
    Lock lock(mutex_);
    reports_.wait(lock, [&] { return (reported & 0xffff) == made; });
    const uint32_t able = made - (reported >> 16);
    threads_.store(able, std::memory_order_relaxed);
    if (able == size_.threads) return Status();
    if (status.ok()) status = begin_failure_;
    if (able == 0) return status;
    log_line(SH_LOG_WARNING, "%u of %u staging threads could be started: %s", able, size_.threads,
             status.text());
    return Status();
}

void StagingEngine::Impl::run_worker(uint32_t* reported) {
    prctl(PR_SET_TIMERSLACK, 5000);  // nanoseconds: the pauses between looks are tens of microseconds
    Status begun = device_.thread_begin();
    {
        Lock lock(mutex_);
        *reported += begun.ok() ? 1 : 0x10001;
        if (!begun.ok()) begin_failure_ = begun;
        reports_.notify_one();
        if (!begun.ok()) return;
    }
    Reader reader;
    std::vector<ReadRequest> requests;
    Lock lock(mutex_);
    for (;;) {
        const Task task = next_task(lock);   // which needs no memory, as nothing here does that is not caught
        switch (task.kind) {
            case Task::kStop:
                return;
            case Task::kEndLoad:
                end(lock, *task.load);
                break;
            case Task::kEndStore:
                end(lock, *task.store);
                break;
            case Task::kEmpty:
                empty_slot(lock, *task.slot);
                break;
            case Task::kRead:
                read_piece(lock, task, reader, requests);
                break;
            case Task::kStore:
                issue_store_step(lock, task);
                break;
        }
    }
}

void StagingEngine::Impl::stop_workers() {
    {
        Lock lock(mutex_);
        stopping_ = true;
        work_.notify_all();
    }
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
}

bool StagingEngine::Impl::in_child() const { return process_ != 0 && process_ != getpid(); }

// Slots that the device did not answer for are asked for again by the next look.
void StagingEngine::Impl::revive() {
    if (!ring_.any_retired()) return;
    ring_.revive();
    if (!ring_.all_retired()) lost_ = Status();
}

Status StagingEngine::Impl::submit(StagedLoad& load) {
    SH_TRY(start());
    try {
        Lock lock(mutex_);
        revive();
        if (!lost_.ok()) return lost_;
        if (idle_loads_.empty()) {
            idle_loads_.reserve(all_loads_.size() + 1);
            ending_loads_.reserve(all_loads_.size() + 1);
            loads_.reserve(all_loads_.size() + 1);
            auto made = std::make_unique<LoadProgress>();
            made->ready.reserve(ring_.slots());
            made->reading.reserve(ring_.slots());
            all_loads_.push_back(std::move(made));
            idle_loads_.push_back(all_loads_.back().get());
        }
        LoadProgress& progress = *idle_loads_.back();
        progress.begin(load);
        progress.sequence = sequence_++;
        loads_.push(progress);
        idle_loads_.pop_back();
        load.progress = &progress;
        wake();
        return Status();
    } catch (const std::bad_alloc&) {
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY);
    }
}

Status StagingEngine::Impl::submit(StagedStore& store) {
    SH_TRY(start());
    try {
        Lock lock(mutex_);
        revive();
        if (!lost_.ok()) return lost_;
        if (idle_stores_.empty()) {
            for (auto* list : {&idle_stores_, &ending_stores_, &straight_, &looked_})
                list->reserve(all_stores_.size() + 1);
            stores_.reserve(all_stores_.size() + 1);
            all_stores_.push_back(std::make_unique<StoreProgress>());
            idle_stores_.push_back(all_stores_.back().get());
        }
        StoreProgress& progress = *idle_stores_.back();
        progress.begin(store);
        progress.sequence = sequence_++;
        stores_.push(progress);
        idle_stores_.pop_back();
        store.progress = &progress;
        wake();
        return Status();
    } catch (const std::bad_alloc&) {
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY);
    }
}

StagingEngine::StagingEngine(BackendDevice& device, const StagingOptions& options)
    : impl_(std::make_unique<Impl>(device, options)) {}
StagingEngine::~StagingEngine() {
    // After a fork there is no worker to wait for, and the device belongs to the parent: nothing here can be
    // taken apart.
    if (impl_->in_child()) (void)impl_.release();
}
Status StagingEngine::submit(StagedLoad& load) { return impl_->submit(load); }
Status StagingEngine::submit(StagedStore& store) { return impl_->submit(store); }
bool StagingEngine::cancel(StagedLoad& load) { return impl_->cancel(load); }
void StagingEngine::hurry(StagedLoad& load, uint64_t deadline_ns) { impl_->hurry(load, deadline_ns); }
uint64_t StagingEngine::ring_bytes() const { return impl_->ring_bytes(); }
uint64_t StagingEngine::pinned_bytes() const { return impl_->pinned_bytes(); }
uint64_t StagingEngine::piece_bytes() const { return impl_->size().piece_bytes; }
uint32_t StagingEngine::threads() const { return impl_->threads(); }

}  // namespace stagehand::transfer
