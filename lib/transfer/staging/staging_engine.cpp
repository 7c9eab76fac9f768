#include "transfer/staging/staging_engine.h"

#include <cstdlib>
#include <new>

#include "base/log.h"
#include "platform/host_memory.h"
#include "platform/processors.h"
#include "transfer/staging/staging_impl.h"

namespace stagehand::transfer {
namespace {

constexpr size_t kExpected = 64;  // loads, or stores, at once; more of them allocate when they come

Status begin_worker(BackendDevice& device) {
    const auto& processors = device.host_policy().processors;
    if (processors && !platform::run_on(*processors))
        log_line(SH_LOG_WARNING, "a staging thread may not run on options.staging_cpus, and runs anywhere");
    return device.thread_begin();
}

}  // namespace

StagingEngine::Impl::Impl(BackendDevice& device, const StagingOptions& options)
    : device_(device),
      size_(choose_staging_size(options, device.info(), platform::usable_cores(),
                                secure_getenv("STAGEHAND_STAGING_THREADS"))),
      figures_{0, 0, size_.threads} {}

StagingEngine::Impl::~Impl() {
    stop_workers();
    slots_.free();
}

Status StagingEngine::Impl::start() {
    if (started_.load(std::memory_order_acquire)) return Status();
    std::lock_guard starting(start_mutex_);
    if (started_.load(std::memory_order_relaxed)) return Status();
    Status status;
    try {
        status = slots_.allocate(device_, size_);
        loads_.expect(kExpected);
        stores_.expect(kExpected);
        arrived_.reserve(slots_.slots());
        uint32_t able = size_.threads;
        if (status.ok())
            status = workers_.start(
                size_.threads, [this] { return begin_worker(device_); }, [this] { work(); }, &able);
        figures_.threads.store(able, std::memory_order_relaxed);
    } catch (const std::bad_alloc&) {
        status = Status(SH_ERROR_OUT_OF_HOST_MEMORY);
    }
    if (!status.ok()) {
        stop_workers();
        stopping_ = false;
        figures_.threads.store(size_.threads, std::memory_order_relaxed);
        slots_.free();
        return status.within("staging buffers");
    }
    figures_.bytes.store(slots_.bytes(), std::memory_order_relaxed);
    figures_.pinned_bytes.store(slots_.pinned_bytes(), std::memory_order_relaxed);
    log_line(SH_LOG_INFO, "staging buffers: %zu slots of %llu KiB, %u threads", slots_.slots(),
             static_cast<unsigned long long>(size_.piece_bytes >> 10), threads());
    started_.store(true, std::memory_order_release);
    return Status();
}

void StagingEngine::Impl::work() {
    Reader reader;
    std::vector<ReadRequest> requests;
    Lock lock(mutex_);
    for (;;) {
        const Task task = next_task(lock);  // needs no memory; nothing else here throws without being caught
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
        bell_.wake_all();
    }
    workers_.join();
}

// Puts slots for which the device did not answer back in flight, so that the next look asks for them again.
void StagingEngine::Impl::revive() {
    if (!slots_.any_retired()) return;
    slots_.revive();
    if (!slots_.all_retired()) lost_ = Status();
}

Status StagingEngine::Impl::submit(StagedLoad& load) {
    SH_TRY(start());
    try {
        Lock lock(mutex_);
        revive();
        if (!lost_.ok()) return lost_;
        LoadProgress& progress = loads_.take([&](LoadProgress& made) {
            made.ready.reserve(slots_.slots());
            made.reading.reserve(slots_.slots());
        });
        if (Status begun = no_throw([&] { return progress.begin(load), Status(); }); !begun.ok()) {
            loads_.give_back(progress);
            return begun;
        }
        loads_.begin(progress);
        load.progress = &progress;
        if (!load.carrier) load.carrier = &own_link_;
        bell_.wake();
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
        StoreProgress& progress = stores_.take([](StoreProgress&) {});
        if (Status begun = no_throw([&] { return progress.begin(store), Status(); }); !begun.ok()) {
            stores_.give_back(progress);
            return begun;
        }
        stores_.begin(progress);
        store.progress = &progress;
        bell_.wake();
        return Status();
    } catch (const std::bad_alloc&) {
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY);
    }
}

StagingEngine::StagingEngine(BackendDevice& device, const StagingOptions& options)
    : impl_(std::make_unique<Impl>(device, options)) {}
StagingEngine::~StagingEngine() {
    // A forked child has no worker to wait for, and the device belongs to the parent. So nothing here can be destroyed.
    if (impl_->in_child()) (void)impl_.release();
}
Status StagingEngine::submit(StagedLoad& load) { return impl_->submit(load); }
Status StagingEngine::submit(StagedStore& store) { return impl_->submit(store); }
bool StagingEngine::cancel(StagedLoad& load) { return impl_->cancel(load); }
void StagingEngine::hurry(StagedLoad& load, uint64_t deadline_ns) { impl_->hurry(load, deadline_ns); }
uint64_t StagingEngine::bytes() const { return impl_->bytes(); }
uint64_t StagingEngine::pinned_bytes() const { return impl_->pinned_bytes(); }
uint64_t StagingEngine::piece_bytes() const { return impl_->size().piece_bytes; }
uint32_t StagingEngine::threads() const { return impl_->threads(); }

}  // namespace stagehand::transfer
