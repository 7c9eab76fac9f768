// The stores of the staging engine: device bytes are copied into slots, and from there to host memory.
#include <cstring>

#include "transfer/staging/staging_impl.h"

namespace stagehand::transfer {

// Does one step of a store: its waits, or the piece of one slot. The store is in no queue meanwhile.
void StagingEngine::Impl::issue_store_step(Lock& lock, const Task& task) {
    StoreProgress& store = *task.store;
    SlotIssued issued;
    if (store.failure.ok()) {
        lock.unlock();
        const Status status = issue_some(store, task.slot, &issued);
        lock.lock();
        store.needs_slot = store.failure.ok() && store.next.extent < store.store->extents.size();
        fail(store, status);
    }
    if (task.slot) {
        if (issued.use == SlotUse::kInFlight)
            store.slots++;
        else
            counts_.store_slots--;
        settle(*task.slot, issued.use);
    }
    if (store.failure.ok() && store.needs_slot) {
        stores_.push(store);
        bell_.wake();
    } else {
        finish_issue(lock, store);
    }
}

Status StagingEngine::Impl::issue_some(StoreProgress& store, Slot* slot, SlotIssued* issued) {
    if (!slot) return begin_store(store);
    const std::span<const StagedStore::Extent> extents(store.store->extents);
    slot->piece = cut_piece(extents, store.next, size_.piece_bytes);
    const Status status = no_throw([&] { return issue_store(device_, *store.store, *slot, issued); });
    store.next = slot->piece.end;
    return status;
}

// Records a failure. A store that fails in the queue needs no slot to come to its end.
void StagingEngine::Impl::fail(StoreProgress& store, const Status& status) {
    if (status.ok()) return;
    if (store.failure.ok()) store.failure = status;
    store.needs_slot = false;
}

Status StagingEngine::Impl::begin_store(StoreProgress& store) {
    StagedStore& of = *store.store;
    for (sh_backend_event event : of.waits)
        if (event) SH_TRY(device_.stream_wait_event(of.stream, event));
    skip_empty(std::span<const StagedStore::Extent>(of.extents), &store.next);
    return Status();
}

// Called when all copies were issued, or when no more copies will be issued.
void StagingEngine::Impl::finish_issue(Lock& lock, StoreProgress& store) {
    StagedStore& of = *store.store;
    if (store.failure.ok()) {
        lock.unlock();
        const Status status = of.read ? device_.event_record(of.read, of.stream) : Status();
        if (status.ok() && of.device_read) call_back([&] { of.device_read(of.context, of); });
        lock.lock();
        fail(store, status);
    }
    store.issued = true;
    end_if_done(lock, store);
}

// Copies the bytes that have arrived in the slot to host memory.
void StagingEngine::Impl::empty_slot(Lock& lock, Slot& slot) {
    StoreProgress& store = *slot.store;
    const bool wanted = store.failure.ok();
    lock.unlock();
    if (wanted)
        for (const Scatter& part : slot.scatters) std::memcpy(part.host, slot.memory + part.slot_offset, part.bytes);
    lock.lock();
    slots_.give_back(slot);
    wake_if_starving();
    store.slots--;
    counts_.store_slots--;
    end_if_done(lock, store);
}

bool StagingEngine::Impl::store_done(const StoreProgress& store) const { return store.issued && store.slots == 0; }

void StagingEngine::Impl::end_if_done(Lock& lock, StoreProgress& store) {
    if (store_done(store)) end(lock, store);
}

void StagingEngine::Impl::end(Lock& lock, StoreProgress& progress) {
    StagedStore& store = *progress.store;
    const Status status = progress.failure;
    store.progress = nullptr;
    stores_.give_back(progress);
    lock.unlock();
    call_back([&] { store.finished(store.context, store, status); });
    lock.lock();
}

}  // namespace stagehand::transfer
