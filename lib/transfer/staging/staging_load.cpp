// The loads of the staging engine: workers read pieces into slots and issue them to the stream of the load.
#include <algorithm>

#include "transfer/staging/staging_impl.h"

namespace stagehand::transfer {
uint64_t StagedLoad::contents_bytes() const { return bytes_of(extents) + bytes_of(packed); }

uint64_t StagedLoad::link_bytes() const {
    uint64_t bytes = bytes_of(extents);
    for (const Batch& batch : batches.list) bytes += batch.bytes();
    return bytes;
}

bool StagingEngine::Impl::cancel(StagedLoad& load) {
    Lock lock(mutex_);
    LoadProgress* const progress = load.progress;
    if (!progress || progress->ending) return false;
    if (progress->pieces_taken == 0) {
        loads_.remove(*progress);
        load.progress = nullptr;
        loads_.give_back(*progress);
        return true;
    }
    progress->cancelled = true;
    if (loads_.contains(*progress)) loads_.remove(*progress);
    if (progress->active == 0) {
        end_soon(*progress);
        bell_.wake();
    }
    return false;
}

void StagingEngine::Impl::hurry(StagedLoad& load, uint64_t deadline_ns) {
    Lock lock(mutex_);
    LoadProgress* const progress = load.progress;
    if (!progress || deadline_ns >= progress->deadline_ns) return;
    progress->deadline_ns = deadline_ns;
    if (loads_.contains(*progress)) loads_.moved(*progress);
}

void StagingEngine::Impl::read_piece(Lock& lock, const Task& task, Reader& reader, std::vector<ReadRequest>& requests) {
    LoadProgress& load = *task.load;
    Slot& slot = *task.slot;
    const uint32_t readers = ++counts_.readers;
    lock.unlock();
    const uint64_t began = device_.now_ns();
    const Status status = no_throw([&] {
        if (slot.batch) return read_batch(reader, size_.slot_bytes, slot);
        SH_TRY(lay_out(*load.load, slot.piece, slot.memory, size_.slot_bytes, &slot.commands, &requests));
        return reader.read(requests);
    });
    const uint64_t took = device_.now_ns() - began;
    lock.lock();
    load.read_ns += took / std::max(readers, counts_.readers--);
    load.reading.erase(std::find(load.reading.begin(), load.reading.end(), slot.piece_index));
    fail(load, status);
    if (load.stopped()) {
        drop(slot);
    } else {
        const auto place = std::find_if(load.ready.begin(), load.ready.end(),
                                        [&](const Slot* other) { return other->piece_index > slot.piece_index; });
        load.ready.insert(place, &slot);
        counts_.parked++;
    }
    issue_ready(lock, load);
    end_if_done(lock, load);
}

// Returns true if all earlier pieces have been issued or are ready. The waits of a later piece would delay an earlier
// piece.
bool StagingEngine::Impl::in_turn(const LoadProgress& load, const Slot& slot) const {
    return std::all_of(load.reading.begin(), load.reading.end(),
                       [&](uint64_t index) { return index > slot.piece_index; });
}

// Issues the pieces that are ready, in order. Only one worker at a time does this for a load. Slots that wait for a
// slow reader must not take up all slots. So pieces are issued out of order while more than half of the slots are
// parked.
void StagingEngine::Impl::issue_ready(Lock& lock, LoadProgress& load) {
    if (load.issuing) return;
    load.issuing = true;
    while (!load.ready.empty()) {
        Slot& slot = *load.ready.front();
        if (!load.stopped() && !in_turn(load, slot) && counts_.parked <= slots_.slots() / 2) break;
        load.ready.erase(load.ready.begin());
        counts_.parked--;
        if (load.stopped()) {
            drop(slot);
            continue;
        }
        lock.unlock();
        SlotIssued issued;
        bool returned = false;
        const Status status = no_throw([&] {
            Status result = issue_load(device_, *load.load, slot, &load.waited, &issued);
            returned = true;
            return result;
        });
        if (!returned) issued.use = SlotUse::kUnknown;  // copies may have been queued before memory was too short
        lock.lock();
        fail(load, status);
        load.issued_pieces += issued.commands;
        load.issued_bytes += issued.bytes;
        load.active--;
        settle(slot, issued.use);
    }
    load.issuing = false;
}

// Records a failure: no more pieces of the load are taken. Success is ignored.
void StagingEngine::Impl::fail(LoadProgress& load, const Status& status) {
    if (status.ok()) return;
    if (load.failure.ok()) load.failure = status;
    if (loads_.contains(load)) loads_.remove(load);
}

void StagingEngine::Impl::drop(Slot& slot) {
    slot.load->dropped = true;
    slot.load->active--;
    slots_.give_back(slot);
    wake_if_starving();
}

void StagingEngine::Impl::settle(Slot& slot, SlotUse use) {
    switch (use) {
        case SlotUse::kFree:
            slots_.give_back(slot);
            break;
        case SlotUse::kInFlight:
            slots_.set_in_flight(slot);
            break;
        case SlotUse::kUnknown:
            slots_.retire(slot);
            if (slots_.all_retired())
                lost_ = Status(SH_ERROR_BACKEND, "the device no longer reports when copies are done");
            break;
    }
    wake_if_starving();
}

void StagingEngine::Impl::end_if_done(Lock& lock, LoadProgress& load) {
    if (load.active > 0 || load.ending || !(load.exhausted() || load.stopped())) return;
    end(lock, load);
}

void StagingEngine::Impl::end_soon(LoadProgress& load) {
    load.ending = true;
    loads_.end_soon(load);
}

void StagingEngine::Impl::end(Lock& lock, LoadProgress& progress) {
    StagedLoad& load = *progress.load;
    Status status = progress.failure;
    if (status.ok() && progress.cancelled && (progress.dropped || !progress.exhausted()))
        status = Status(SH_ERROR_CANCELLED);
    load.issued_pieces = progress.issued_pieces;
    load.issued_bytes = progress.issued_bytes;
    load.read_ns = progress.read_ns;
    load.progress = nullptr;
    loads_.give_back(progress);
    lock.unlock();
    call_back([&] { load.finished(load.context, load, status); });
    lock.lock();
}

}  // namespace stagehand::transfer
