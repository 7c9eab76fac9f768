// Slots: the pinned buffers of the staging engine. Knows which of them a copy still uses.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/host/pinned_memory.h"
#include "transfer/staging/gather.h"
#include "transfer/staging/staging_engine.h"
#include "transfer/staging/staging_size.h"

namespace stagehand::transfer {

// The host address of a part of a slot, for the time when its device bytes have arrived.
struct Scatter {
    void* host = nullptr;
    uint64_t slot_offset = 0;
    uint64_t bytes = 0;
};

struct Slot {
    char* memory = nullptr;
    sh_backend_event event = 0;            // recorded after the last copy that uses the memory
    sh_stream stream = 0;                  // the stream on which the event was recorded
    bool recorded = false;                 // since the last copy
    StagedLoad::Progress* load = nullptr;  // the slot is taken for `load` or for `store`
    StagedStore::Progress* store = nullptr;
    uint64_t piece_index = 0;  // of a load
    Piece piece;
    std::vector<Command> commands;
    const Batch* batch = nullptr;  // of a load: the slot holds its chunks, at `chunks`, and no piece
    char* chunks = nullptr;
    std::vector<Scatter> scatters;  // of a store
    // Result of the last look at the event, while the slot is in flight.
    bool done = false;
    Status failure;
};

// Guarded by the engine's mutex, except look(), which one thread at a time calls without the mutex.
class Slots {
public:
    // Makes memory, slots and events. Makes fewer slots if memory is short. Holds nothing after a failure.
    Status allocate(BackendDevice& device, const StagingSize& size);
    // Waits for the slots in flight and frees all memory. Memory that the device may still use stays mapped for ever.
    void free();

    bool has_free() const { return !free_.empty(); }
    Slot* take();
    void give_back(Slot& slot);
    // Called after the slot's event has been recorded.
    void set_in_flight(Slot& slot) {
        slot.done = false;  // belongs to the previous flight: a look that is under way has not asked for this one
        in_flight_.push_back(&slot);
    }
    // The device does not report when it is done with the slot. The slot is not used again before revive().
    void retire(Slot& slot) {
        slot.load = nullptr;
        slot.store = nullptr;
        retired_.push_back(&slot);
    }
    // Puts retired slots with a recorded event back in flight, because the device may answer by now.
    void revive();
    bool any_retired() const { return !retired_.empty(); }
    bool all_retired() const { return retired_.size() == slots_.size(); }

    bool any_in_flight() const { return !in_flight_.empty(); }
    // Copies the list of slots in flight, for look().
    std::span<Slot* const> watch();
    // Asks the device which slots are done, in order. For each stream it stops at the first slot that is not done. If
    // an event cannot be queried, the function waits for the event. If the wait fails too, the slot gets a failure.
    static void look(BackendDevice& device, std::span<Slot* const> slots);
    // Takes the slots that look() found done or failed out of flight, and calls `arrived` for each.
    template <typename Arrived>
    void collect(Arrived arrived) {
        size_t kept = 0;
        for (size_t i = 0; i < in_flight_.size(); i++) {
            Slot& slot = *in_flight_[i];
            if (!slot.done && slot.failure.ok())
                in_flight_[kept++] = &slot;
            else
                arrived(slot);
        }
        in_flight_.resize(kept);
    }

    size_t slots() const { return slots_.size(); }
    uint64_t bytes() const { return memory_.bytes(); }
    uint64_t pinned_bytes() const { return memory_.pinned_bytes(); }
    uint64_t slot_bytes() const { return slot_bytes_; }

private:
    Status make_slots(BackendDevice& device, uint64_t slot_bytes);

    BackendDevice* device_ = nullptr;
    PinnedMemory memory_;
    uint64_t slot_bytes_ = 0;
    std::vector<Slot> slots_;
    std::vector<Slot*> free_;       // the slot that was used last is taken first: its memory may still be in the cache
    std::vector<Slot*> in_flight_;  // in the order in which their events were recorded
    std::vector<Slot*> retired_;
    std::vector<Slot*> watched_;
};

}  // namespace stagehand::transfer
