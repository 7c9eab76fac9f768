// SlotRing: the pinned buffers of the staging engine, and which of them a copy still uses.
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

// Where a part of a slot goes when its device bytes have arrived.
struct Scatter {
    void* host = nullptr;
    uint64_t slot_offset = 0;
    uint64_t bytes = 0;
};

struct Slot {
    char* memory = nullptr;
    sh_backend_event event = 0;            // recorded after the last copy that uses the memory
    sh_stream stream = 0;                  // where it was recorded
    bool recorded = false;                 // since the last copy
    StagedLoad::Progress* load = nullptr;  // what it is taken for: one of these
    StagedStore::Progress* store = nullptr;
    uint64_t piece_index = 0;  // of a load
    Piece piece;
    std::vector<CopyCommand> commands;  // of a load
    std::vector<Scatter> scatters;      // of a store
    // Result of the last look at the event, while the slot is in flight.
    bool done = false;
    Status failure;
};

// Guarded by the engine's mutex, but for look(), which one thread at a time calls without it.
class SlotRing {
public:
    // Slots, events and memory; fewer slots where memory is short. On failure nothing is held.
    Status allocate(BackendDevice& device, const StagingSize& size);
    // Waits for what is in flight and gives all back. Memory that the device may still use stays mapped for
    // ever.
    void free();

    bool has_free() const { return !free_.empty(); }
    Slot* take();
    void give_back(Slot& slot);
    // The slot's event has been recorded.
    void set_in_flight(Slot& slot) {
        slot.done = false;  // of its last flight: a look that is under way has not asked about this one
        in_flight_.push_back(&slot);
    }
    // The device does not tell when it is done with it: it is not used before it has been revived.
    void retire(Slot& slot) {
        slot.load = nullptr;
        slot.store = nullptr;
        retired_.push_back(&slot);
    }
    // Puts retired slots that have an event to ask for back in flight: the device may answer by now.
    void revive();
    bool any_retired() const { return !retired_.empty(); }
    bool all_retired() const { return retired_.size() == slots_.size(); }

    bool any_in_flight() const { return !in_flight_.empty(); }
    // Takes a copy of what is in flight, for look().
    std::span<Slot* const> watch();
    // Asks the device which of them are done, in order, up to the first of each stream that is not. If an
    // event cannot be asked it is waited for; if that fails too, the slot has a failure.
    static void look(BackendDevice& device, std::span<Slot* const> slots);
    // Takes those that look() found done or failed out of flight, and calls `arrived` for each.
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
    std::vector<Slot*> free_;       // the last one used is taken first: its memory may still be in the cache
    std::vector<Slot*> in_flight_;  // in the order in which their events were recorded
    std::vector<Slot*> retired_;
    std::vector<Slot*> watched_;
};

}  // namespace stagehand::transfer
