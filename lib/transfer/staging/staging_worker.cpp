// Chooses the next work of a worker of the staging engine.
#include <algorithm>
#include <chrono>

#include "transfer/staging/staging_impl.h"

namespace stagehand::transfer {
namespace {

// The pause between two looks at the device, in microseconds, while a job waits for a slot in flight. The pause grows
// while nothing changes. A copy behind a long computation may take a while, and the work that is queued behind it on
// the device lasts longer than the longest pause.
constexpr uint32_t kShortestPause = 20;
constexpr uint32_t kLongestPause = 250;

}  // namespace

// Called after a slot has become free or is in flight.
void StagingEngine::Impl::wake_if_starving() {
    if (starving() || wants_look()) bell_.wake();
}

StagingEngine::Impl::Task StagingEngine::Impl::next_task(Lock& lock) {
    for (;;) {
        Task task;
        if (stopping_)
            give_up_queues(Status(SH_ERROR_CANCELLED));
        else if (!lost_.ok())
            give_up_queues(lost_);
        if (choose(&task)) {
            if (bell_.anyone_waits() && more_to_do()) bell_.wake();  // wake the next worker
            return task;
        }
        if (stopping_ && !wants_look()) {
            bell_.wake_all();
            return task;
        }
        if (looking_ || !wants_look()) {
            bell_.wait(lock);
            continue;
        }
        looking_ = true;
        const uint64_t wakes = bell_.wakes();
        if (look(lock))
            look_pause_us_ = 0;
        else if (wakes == bell_.wakes())
            pause(lock);
        looking_ = false;
    }
}

void StagingEngine::Impl::pause(Lock& lock) {
    look_pause_us_ = std::clamp(look_pause_us_ * 2, kShortestPause, kLongestPause);
    bell_.wait_for(lock, std::chrono::microseconds(look_pause_us_));
}

// Returns true if another worker would find work.
bool StagingEngine::Impl::more_to_do() const {
    return loads_.any_ending() || stores_.any_ending() || !arrived_.empty() || (!loads_.empty() && slots_.has_free()) ||
           (!stores_.empty() && store_may_have_slot()) || (!looking_ && wants_look());
}

bool StagingEngine::Impl::choose(Task* task) {
    if (loads_.any_ending()) {
        *task = {Task::kEndLoad, loads_.take_ending(), nullptr, nullptr};
        return true;
    }
    if (stores_.any_ending()) {
        *task = {Task::kEndStore, nullptr, stores_.take_ending(), nullptr};
        return true;
    }
    if (!arrived_.empty()) {  // emptying the slot gives it back
        *task = {Task::kEmpty, nullptr, nullptr, arrived_.back()};
        arrived_.pop_back();
        return true;
    }
    const bool store_first =
        !stores_.empty() && (loads_.empty() || stores_.front()->deadline_ns < loads_.front()->deadline_ns);
    return store_first ? choose_store(task) || choose_load(task) : choose_load(task) || choose_store(task);
}

// Relays bring only pieces that are worth it.
uint64_t StagingEngine::Impl::piece_bytes(const LoadProgress& load) const {
    const uint64_t least = std::max(kLeastPart, load.load->carrier->least_piece());
    return fair_piece(load.left, loads_.size() == 1 ? size_.threads : 1, least, size_.piece_bytes);
}

bool StagingEngine::Impl::choose_load(Task* task) {
    if (loads_.empty() || !slots_.has_free()) return false;
    LoadProgress& load = *loads_.front();
    Slot& slot = *slots_.take();
    slot.load = &load;
    slot.batch = load.take_batch();
    if (!slot.batch) {
        slot.piece = cut_piece(std::span<const StagedExtent>(load.load->extents), load.next, piece_bytes(load));
        load.next = slot.piece.end;
        load.left -= slot.piece.bytes;
    }
    slot.piece_index = load.pieces_taken++;
    load.active++;
    load.reading.push_back(slot.piece_index);
    if (load.exhausted()) loads_.remove(load);
    *task = {Task::kRead, &load, nullptr, &slot};
    return true;
}

// Stores may wait for long computations, so a quarter of the slots is never for stores.
bool StagingEngine::Impl::store_may_have_slot() const {
    return !stores_.front()->needs_slot ||
           (slots_.has_free() && counts_.store_slots < std::max<size_t>(1, slots_.slots() * 3 / 4));
}

bool StagingEngine::Impl::choose_store(Task* task) {
    if (stores_.empty() || !store_may_have_slot()) return false;
    StoreProgress& store = *stores_.front();
    Slot* slot = nullptr;
    if (store.needs_slot) {
        slot = slots_.take();
        slot->store = &store;
        counts_.store_slots++;
    }
    stores_.remove(store);
    *task = {Task::kStore, nullptr, &store, slot};
    return true;
}

// Returns true if a queued job could begin if a slot were free.
bool StagingEngine::Impl::starving() const { return !loads_.empty() || !stores_.empty(); }

bool StagingEngine::Impl::wants_look() const {
    return slots_.any_in_flight() && (starving() || counts_.store_slots > 0);
}

// Asks the device what has finished, without the lock, and sorts the results. Returns true if something has finished.
bool StagingEngine::Impl::look(Lock& lock) {
    const std::span<Slot* const> slots = slots_.watch();
    lock.unlock();
    Slots::look(device_, slots);
    lock.lock();
    bool any = false;
    slots_.collect([&](Slot& slot) {
        any = true;
        StoreProgress* const store = slot.store;
        if (!slot.failure.ok()) {
            slots_.retire(slot);
            if (slots_.all_retired()) lost_ = slot.failure;
        }
        if (!store) {
            if (slot.failure.ok()) slots_.give_back(slot);
        } else if (slot.failure.ok()) {
            arrived_.push_back(&slot);
        } else {
            counts_.store_slots--;
            store->slots--;
            fail(*store, slot.failure);
            if (store_done(*store)) stores_.end_soon(*store);
        }
    });
    return any;
}

// Ends all queued jobs, because the engine stops or has lost its slots.
void StagingEngine::Impl::give_up_queues(const Status& status) {
    while (!loads_.empty()) {
        LoadProgress& load = *loads_.front();
        fail(load, status);
        if (load.active == 0) end_soon(load);
    }
    stores_.for_each([&](StoreProgress& store) { fail(store, status); });
}

}  // namespace stagehand::transfer
