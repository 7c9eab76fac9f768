// Issuing the copy commands of a slot to a stream.
#pragma once

#include <cstdint>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/staging/progress.h"
#include "transfer/staging/slot_ring.h"

namespace stagehand::transfer {

// What became of a slot whose copies were issued.
enum class SlotUse {
    kFree,      // no copy uses it
    kInFlight,  // its event tells when they are done
    kUnknown    // copies may use it, and nothing tells when they are done
};

struct Issued {
    SlotUse use = SlotUse::kFree;
    uint64_t commands = 0;
    uint64_t bytes = 0;
};

// The waits of each range that were not issued yet, then its copy; at last the slot's event. Ranges that
// continue each other are copied at once unless waits stand between them. One thread at a time for each load:
// a wait that is marked as issued must have been issued before a copy relies on it. Different loads need no
// order on a stream: a copy then waits for more than it must.
Status issue_load(BackendDevice& device, const StagedLoad& load, Slot& slot, WaitSet* waited, Issued* out);

// Copies the slot's piece of the store's extents, but for those that go straight, into the slot; then its
// event.
Status issue_store(BackendDevice& device, const StagedStore& store, Slot& slot, Issued* out);

// Marks extents whose host memory is pinned and copies them straight there. One that is refused is left for
// the slots.
void issue_straight(BackendDevice& device, const StagedStore& store, std::vector<uint8_t>* straight,
                    bool* out_any);

}  // namespace stagehand::transfer
