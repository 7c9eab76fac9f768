// The stores of the staging engine: device bytes are copied into slots, and from there to host memory. Pinned host
// memory needs no slot.
#include <cstring>

#include "base/once_more.h"
#include "transfer/staging/staging_impl.h"

namespace stagehand::transfer {

// Does one step of a store: its waits and straight copies, or the piece of one slot. The store is in no queue
// meanwhile.
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
    size_t stop = store.next.extent;
    while (stop < extents.size() && !store.straight[stop]) stop++;
    slot->piece = cut_piece(extents.first(stop), store.next, size_.piece_bytes);
    const Status status = no_throw([&] { return issue_store(device_, *store.store, *slot, issued); });
    store.next = slot->piece.end;
    find_staged(store);
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
    issue_straight(device_, of, &store.straight, &store.any_straight);
    store.waited = true;
    find_staged(store);
    return Status();
}

// Steps to the next byte that goes through a slot.
void StagingEngine::Impl::find_staged(StoreProgress& store) const {
    const std::span<const StagedStore::Extent> extents(store.store->extents);
    skip_empty(extents, &store.next);
    while (store.next.extent < extents.size() && store.straight[store.next.extent]) {
        store.next = {store.next.extent + 1, 0};
        skip_empty(extents, &store.next);
    }
}

// Called when all copies were issued, or when no more copies will be issued.
void StagingEngine::Impl::finish_issue(Lock& lock, StoreProgress& store) {
    StagedStore& of = *store.store;
    const bool failed = !store.failure.ok();
    lock.unlock();
    Status status;
    bool straight_in_flight = false;
    if (!failed) status = record_read(store, &straight_in_flight);
    // The caller may free the host memory after a failure, so no copy may still write to it.
    if ((failed || !status.ok()) && store.any_straight)
        (void)once_more([&] { return device_.stream_synchronize(of.stream); }).ok();
    if (!failed && status.ok() && of.device_read) call_back([&] { of.device_read(of.context, of); });
    lock.lock();
    fail(store, status);
    store.issued = true;
    if (straight_in_flight && status.ok()) {
        store.straight_in_flight = true;
        straight_.push_back(&store);
        bell_.wake();
    }
    end_if_done(lock, store);
}

Status StagingEngine::Impl::record_read(StoreProgress& store, bool* out_straight_in_flight) {
    StagedStore& of = *store.store;
    if (of.read) SH_TRY(device_.event_record(of.read, of.stream));
    if (!store.any_straight) return Status();
    if (!store.arrived) SH_TRY(device_.event_create(false, &store.arrived));
    SH_TRY(device_.event_record(store.arrived, of.stream));
    *out_straight_in_flight = true;
    return Status();
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

bool StagingEngine::Impl::store_done(const StoreProgress& store) const {
    return store.issued && store.slots == 0 && !store.straight_in_flight;
}

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
