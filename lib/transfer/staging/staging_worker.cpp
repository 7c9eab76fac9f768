// How a worker of the staging engine chooses what to do next.
#include <algorithm>
#include <chrono>

#include "transfer/staging/staging_impl.h"

namespace stagehand::transfer {
namespace {

// Between two looks at the device while somebody waits for what is in flight. It grows while nothing changes:
// what stands behind a long computation may take a while, and what is queued behind it on the device lasts
// longer than the longest pause.
constexpr uint32_t kShortestPause = 20;
constexpr uint32_t kLongestPause = 250;

}  // namespace

// Wakes one worker; a worker that finds more to do than it takes wakes the next.
void StagingEngine::Impl::wake() {
    wakes_++;
    if (idle_ > 0) work_.notify_one();
}

// After a slot has become free or is in flight.
void StagingEngine::Impl::wake_if_starving() {
    if (starving() || wants_look()) wake();
}

StagingEngine::Impl::Task StagingEngine::Impl::next_task(Lock& lock) {
    for (;;) {
        Task task;
        if (stopping_)
            give_up_queues(Status(SH_ERROR_CANCELLED));
        else if (!lost_.ok())
            give_up_queues(lost_);
        if (choose(&task)) {
            if (idle_ > 0 && more_to_do()) wake();
            return task;
        }
        if (stopping_ && !wants_look()) {
            work_.notify_all();
            return task;
        }
        if (looking_ || !wants_look()) {
            idle_++;
            work_.wait(lock);
            idle_--;
            continue;
        }
        looking_ = true;
        const uint64_t wakes = wakes_;
        if (look(lock))
            look_pause_us_ = 0;
        else if (wakes == wakes_)
            pause(lock);
        looking_ = false;
    }
}

void StagingEngine::Impl::pause(Lock& lock) {
    look_pause_us_ = std::clamp(look_pause_us_ * 2, kShortestPause, kLongestPause);
    idle_++;
    work_.wait_for(lock, std::chrono::microseconds(look_pause_us_));
    idle_--;
}

// Whether another worker would find something.
bool StagingEngine::Impl::more_to_do() const {
    return !ending_loads_.empty() || !ending_stores_.empty() || !arrived_.empty() ||
           (!loads_.empty() && ring_.has_free()) || (!stores_.empty() && store_may_have_slot()) ||
           (!looking_ && wants_look());
}

bool StagingEngine::Impl::choose(Task* task) {
    if (!ending_loads_.empty()) {
        *task = {Task::kEndLoad, ending_loads_.back(), nullptr, nullptr};
        ending_loads_.pop_back();
        return true;
    }
    if (!ending_stores_.empty()) {
        *task = {Task::kEndStore, nullptr, ending_stores_.back(), nullptr};
        ending_stores_.pop_back();
        return true;
    }
    if (!arrived_.empty()) {  // gives a slot back
        *task = {Task::kEmpty, nullptr, nullptr, arrived_.back()};
        arrived_.pop_back();
        return true;
    }
    const bool store_first =
        !stores_.empty() && (loads_.empty() || stores_.front()->deadline_ns < loads_.front()->deadline_ns);
    return store_first ? choose_store(task) || choose_load(task) : choose_load(task) || choose_store(task);
}

bool StagingEngine::Impl::choose_load(Task* task) {
    if (loads_.empty() || !ring_.has_free()) return false;
    LoadProgress& load = *loads_.front();
    Slot& slot = *ring_.take();
    slot.load = &load;
    slot.piece = cut_piece(std::span<const StagedExtent>(load.load->extents), load.next, size_.piece_bytes);
    slot.piece_index = load.pieces_taken++;
    load.next = slot.piece.end;
    load.active++;
    load.reading.push_back(slot.piece_index);
    if (load.exhausted()) loads_.remove(load);
    *task = {Task::kRead, &load, nullptr, &slot};
    return true;
}

// A quarter of the slots is never for stores, which may wait for long computations.
bool StagingEngine::Impl::store_may_have_slot() const {
    return !stores_.front()->needs_slot ||
           (ring_.has_free() && store_slots_ < std::max<size_t>(1, ring_.slots() * 3 / 4));
}

bool StagingEngine::Impl::choose_store(Task* task) {
    if (stores_.empty() || !store_may_have_slot()) return false;
    StoreProgress& store = *stores_.front();
    Slot* slot = nullptr;
    if (store.needs_slot) {
        slot = ring_.take();
        slot->store = &store;
        store_slots_++;
    }
    stores_.remove(store);
    *task = {Task::kStore, nullptr, &store, slot};
    return true;
}

// Whether something is queued that could begin if the ring had a free slot.
bool StagingEngine::Impl::starving() const { return !loads_.empty() || !stores_.empty(); }

bool StagingEngine::Impl::wants_look() const {
    return (ring_.any_in_flight() && (starving() || store_slots_ > 0)) || !straight_.empty();
}

// Asks the device what has finished, without the lock, and sorts it. True: something has.
bool StagingEngine::Impl::look(Lock& lock) {
    const std::span<Slot* const> slots = ring_.watch();
    looked_.assign(straight_.begin(), straight_.end());
    lock.unlock();
    SlotRing::look(device_, slots);
    for (StoreProgress* store : looked_) {
        uint32_t done = 0;
        const Status status = device_.event_query(store->arrived, &done);
        if (!status.ok() && !device_.event_synchronize(store->arrived).ok()) store->look_failure = status;
        store->look_done = done || !status.ok();
    }
    lock.lock();
    bool any = false;
    ring_.collect([&](Slot& slot) {
        any = true;
        StoreProgress* const store = slot.store;
        if (!slot.failure.ok()) {
            ring_.retire(slot);
            if (ring_.all_retired()) lost_ = slot.failure;
        }
        if (!store) {
            if (slot.failure.ok()) ring_.give_back(slot);
        } else if (slot.failure.ok()) {
            arrived_.push_back(&slot);
        } else {
            store_slots_--;
            store->slots--;
            fail(*store, slot.failure);
            if (store_done(*store)) ending_stores_.push_back(store);
        }
    });
    std::erase_if(straight_, [&](StoreProgress* store) {
        if (!store->look_done) return false;
        any = true;
        store->straight_in_flight = false;
        fail(*store, store->look_failure);
        if (store_done(*store)) ending_stores_.push_back(store);
        return true;
    });
    return any;
}

// Nothing that is queued will begin: the engine stops, or has lost its slots.
void StagingEngine::Impl::give_up_queues(const Status& status) {
    while (!loads_.empty()) {
        LoadProgress& load = *loads_.front();
        fail(load, status);
        if (load.active == 0) end_soon(load);
    }
    stores_.for_each([&](StoreProgress& store) { fail(store, status); });
}

}  // namespace stagehand::transfer
