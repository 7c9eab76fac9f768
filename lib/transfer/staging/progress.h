// What the staging engine knows of the loads and stores that it has.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "transfer/staging/deadline_queue.h"
#include "transfer/staging/gather.h"
#include "transfer/staging/slot_ring.h"
#include "transfer/staging/staging_engine.h"

namespace stagehand::transfer {

// Which of a load's waits were issued to its stream: each is needed once, since a stream keeps its order.
class WaitSet {
public:
    void clear(size_t count) { bits_.assign((count + 63) / 64, 0); }
    bool has(uint32_t index) const { return bits_[index / 64] >> (index % 64) & 1; }
    void add(uint32_t index) { bits_[index / 64] |= uint64_t(1) << (index % 64); }
    bool has_all(uint32_t first, uint32_t count) const {
        for (uint32_t i = first; i < first + count; i++)
            if (!has(i)) return false;
        return true;
    }

private:
    std::vector<uint64_t> bits_;
};

// Guarded by the engine's mutex, but for `waited`, which belongs to the thread that issues. Used again for
// other loads.
struct StagedLoad::Progress : Deadline {
    StagedLoad* load = nullptr;
    Cursor next;  // what no worker has taken yet begins here
    uint64_t pieces_taken = 0;
    uint32_t active = 0;   // pieces that were taken and neither issued nor dropped
    bool issuing = false;  // a worker issues copies of it
    bool cancelled = false;
    bool dropped = false;           // a piece was taken and not issued
    bool ending = false;            // queued for `finished`
    Status failure;                 // the first
    std::vector<uint64_t> reading;  // indices of pieces that are being read
    std::vector<Slot*> ready;       // read, waiting for pieces before them; by index
    WaitSet waited;
    uint64_t issued_pieces = 0;
    uint64_t issued_bytes = 0;

    bool exhausted() const { return next.extent >= load->extents.size(); }
    bool stopped() const { return cancelled || !failure.ok(); }

    void begin(StagedLoad& of) {
        load = &of;
        deadline_ns = of.deadline_ns;
        next = {};
        skip_empty(std::span<const StagedExtent>(of.extents), &next);
        pieces_taken = 0;
        active = 0;
        issuing = cancelled = dropped = ending = false;
        failure = Status();
        waited.clear(of.waits.size());
        issued_pieces = issued_bytes = 0;
    }
};

// Guarded by the engine's mutex; while a worker issues it (it is in no queue then) that worker has `next`,
// `straight`, `waited`.
struct StagedStore::Progress : Deadline {
    StagedStore* store = nullptr;
    bool waited = false;              // the waits were issued, and what needs no slot
    bool needs_slot = false;          // and something is left
    bool issued = false;              // all of it, or it has failed: only arrivals are waited for
    bool ending = false;              // queued for `finished`
    uint32_t slots = 0;               // in flight or being emptied
    bool straight_in_flight = false;  // copies straight into the host memory, followed by `arrived`
    bool any_straight = false;
    bool look_done = false;  // result of the last look at `arrived`; the looking worker's
    Status look_failure;
    Cursor next;
    std::vector<uint8_t> straight;  // by extent: copied straight into pinned host memory
    sh_backend_event arrived = 0;   // made when first needed
    Status failure;

    void begin(StagedStore& of) {
        store = &of;
        deadline_ns = of.deadline_ns;
        waited = needs_slot = issued = ending = straight_in_flight = any_straight = look_done = false;
        slots = 0;
        next = {};
        straight.assign(of.extents.size(), 0);
        failure = look_failure = Status();
    }
};

}  // namespace stagehand::transfer
