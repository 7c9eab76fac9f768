// The progress of the loads and stores that the staging engine works on.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "transfer/route/command.h"
#include "transfer/staging/deadline_queue.h"
#include "transfer/staging/gather.h"
#include "transfer/staging/slots.h"
#include "transfer/staging/staging_engine.h"

namespace stagehand::transfer {

uint64_t bytes_of(const auto& extents) {
    uint64_t bytes = 0;
    for (const auto& extent : extents) bytes += extent.bytes;
    return bytes;
}

// Guarded by the engine's mutex, except `waited`, which belongs to the issuing thread. Records are used again for other
// loads.
struct StagedLoad::Progress : Deadline {
    StagedLoad* load = nullptr;
    Cursor next;            // the bytes that no worker has taken begin here
    size_t next_batch = 0;  // and, after the extents, the batches
    uint64_t left = 0;      // bytes of extents that no worker has taken
    uint64_t pieces_taken = 0;
    uint32_t active = 0;   // pieces that were taken and not yet issued or dropped
    bool issuing = false;  // a worker issues copies of the load
    bool cancelled = false;
    bool dropped = false;           // a piece was taken and will not be issued
    bool ending = false;            // queued for `finished`
    Status failure;                 // the first failure
    std::vector<uint64_t> reading;  // indices of the pieces that are being read
    std::vector<Slot*> ready;       // slots that were read and wait for earlier pieces; sorted by index
    WaitSet waited;
    uint64_t issued_pieces = 0;
    uint64_t issued_bytes = 0;
    uint64_t read_ns = 0;

    bool extents_taken() const { return next.extent >= load->extents.size(); }
    bool exhausted() const { return extents_taken() && next_batch >= load->batches.list.size(); }
    bool stopped() const { return cancelled || !failure.ok(); }

    // Returns null while extents are left, and if no batch is left.
    const Batch* take_batch() {
        const std::vector<Batch>& list = load->batches.list;
        return extents_taken() && next_batch < list.size() ? &list[next_batch++] : nullptr;
    }

    void begin(StagedLoad& of) {
        load = &of;
        deadline_ns = of.deadline_ns;
        next = {};
        skip_empty(std::span<const StagedExtent>(of.extents), &next);
        next_batch = 0;
        left = bytes_of(of.extents);
        pieces_taken = 0;
        active = 0;
        issuing = cancelled = dropped = ending = false;
        failure = Status();
        waited.clear(of.waits.size());
        issued_pieces = issued_bytes = read_ns = 0;
    }
};

// Guarded by the engine's mutex. While a worker issues the store, the store is in no queue and the worker owns `next`.
struct StagedStore::Progress : Deadline {
    StagedStore* store = nullptr;
    bool needs_slot = false;  // the waits were issued, and bytes are left
    bool issued = false;      // all copies were issued or one has failed, and only arrivals are awaited
    uint32_t slots = 0;       // slots that are in flight or being emptied
    Cursor next;
    Status failure;

    void begin(StagedStore& of) {
        store = &of;
        deadline_ns = of.deadline_ns;
        needs_slot = issued = false;
        slots = 0;
        next = {};
        failure = Status();
    }
};

}  // namespace stagehand::transfer
