// Fills and issues slots. Records the event that tells when the memory of a slot is free again.
#pragma once

#include <cstdint>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/carrier/issue.h"
#include "transfer/source/reader.h"
#include "transfer/staging/progress.h"
#include "transfer/staging/slots.h"

namespace stagehand::transfer {

// The state of a slot after its copies were issued.
enum class SlotUse {
    kFree,      // no copy uses it
    kInFlight,  // the event of the slot tells when the copies are done
    kUnknown    // copies may use it, and no event tells when they are done
};

struct SlotIssued : Issued {
    SlotUse use = SlotUse::kFree;
};

// Reads the chunks of the slot's batch into the slot, and checks them.
Status read_batch(Reader& reader, uint64_t slot_bytes, Slot& slot);

// Issues the slot's commands, or its batch, then records its event. Only one thread at a time may issue a load.
Status issue_load(BackendDevice& device, const StagedLoad& load, Slot& slot, WaitSet* waited, SlotIssued* out);

// Copies the slot's piece of the store into the slot, then records the slot's event.
Status issue_store(BackendDevice& device, const StagedStore& store, Slot& slot, SlotIssued* out);

}  // namespace stagehand::transfer
