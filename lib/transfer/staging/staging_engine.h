// StagingEngine: moves bytes between unpinned memory and the device, through pinned buffers that worker threads fill.
// Each device has one. It serves the staged loads and write-backs of all runtimes, ordered by deadline, with one queue
// for each direction.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/route/staged_extent.h"
#include "transfer/unpack/unpacker.h"

namespace stagehand::transfer {

// A load in parts. The submitter owns it, and does not change it from submit() until `finished` was called or cancel()
// returned true. The vectors keep their capacity, so that a steady state allocates nothing.
struct StagedLoad {
    sh_stream stream = 0;               // copies are issued here, in any order, each after its waits
    uint64_t deadline_ns = 0;           // on the device's clock: earlier loads come first, and 0 is the most urgent
    std::vector<StagedExtent> extents;  // sorted by device address, not overlapping
    // Packed tensors, which workers read and `unpacker` brings to the device, after the extents. It stays open until
    // the load has finished, and a batch takes no more than piece_bytes().
    std::vector<PackedExtent> packed;
    Batches batches;
    Unpacker* unpacker = nullptr;
    // Pieces may be relayed, and so not come on `stream`. What the caller wants to come after the load's copies waits
    // for the carrier. Without one, all come on `stream`.
    Carrier* carrier = nullptr;
    Trip trip = 0;
    std::vector<sh_backend_event> waits;
    bool empty() const { return extents.empty() && packed.empty(); }
    uint64_t contents_bytes() const;  // of all extents
    uint64_t link_bytes() const;      // what the link carries
    // Called exactly once, on a worker thread without locks of the engine. Success means that the last copy was issued
    // to `stream`, not that it has finished. Otherwise `status` is the failure or SH_ERROR_CANCELLED, and no more
    // copies will be issued. Copies that were issued before a failure may still run on `stream`, so the next use of
    // their device addresses must come after them on the stream. The engine does not read the sources any more.
    void (*finished)(void* context, StagedLoad& load, const Status& status) = nullptr;
    void* context = nullptr;
    uint64_t issued_pieces = 0;  // filled by the engine before `finished`: the number of copies and their bytes
    uint64_t issued_bytes = 0;
    uint64_t read_ns = 0;  // for how long workers have read the sources, each by its part of those that read meanwhile
    // Bookkeeping of the engine while it has the load.
    struct Progress;
    Progress* progress = nullptr;
};

// A write-back: copies device bytes to host memory. The rules of ownership are those of a load.
struct StagedStore {
    struct Extent {
        void* host = nullptr;
        uint64_t device_address = 0;
        uint64_t bytes = 0;
    };
    sh_stream stream = 0;  // the copy stream from device to host
    uint64_t deadline_ns = 0;
    std::vector<Extent> extents;
    std::vector<sh_backend_event> waits;  // all come before the first copy
    // Recorded on `stream` after the last copy: the pages may be reused after it. 0 if no event is wanted.
    sh_backend_event read = 0;
    // Called on a worker thread before `finished`, after `read` has been recorded. Not called after a failure. May be
    // null.
    void (*device_read)(void* context, StagedStore& store) = nullptr;
    // Called exactly once, on a worker thread. Success means that the bytes are in host memory. After a failure, any
    // part of the host memory may have been written. In both cases nothing writes to the host memory any more.
    void (*finished)(void* context, StagedStore& store, const Status& status) = nullptr;
    void* context = nullptr;
    struct Progress;
    Progress* progress = nullptr;
};

struct StagingOptions {
    uint64_t bytes = 0;        // 0: chosen from the backend's piece size and the number of workers
    uint32_t threads = 0;      // 0: chosen from the number of cores
    uint64_t piece_bytes = 0;  // 0: the backend's best piece
};

class StagingEngine {
public:
    // Starts nothing and allocates nothing until the first submit().
    StagingEngine(BackendDevice& device, const StagingOptions& options);
    // Before this call, every load and store must have finished or been cancelled. The destructor waits for copies that
    // still run. It must not be called from a callback. Loads and stores that are still queued against this rule end
    // with SH_ERROR_CANCELLED.
    ~StagingEngine();
    StagingEngine(const StagingEngine&) = delete;
    StagingEngine& operator=(const StagingEngine&) = delete;

    // Queues a load. After an error, the load was not queued and `finished` is not called. Errors are: no host memory
    // for the buffers, no thread, or a device that no longer reports when copies are done. The first call blocks while
    // the buffers are pinned. Later calls take a mutex that is held for list operations only. All functions are
    // thread-safe.
    Status submit(StagedLoad& load);
    Status submit(StagedStore& store);

    // Returns true if the load was taken back before any work on it began: `finished` will not be called. Returns false
    // if `finished` was called or will be called. The status is SH_ERROR_CANCELLED if the engine could still drop
    // remaining pieces.
    bool cancel(StagedLoad& load);

    // Brings a queued load forward, because a caller waits for it.
    void hurry(StagedLoad& load, uint64_t deadline_ns);

    uint64_t bytes() const;         // host memory that the engine holds
    uint64_t pinned_bytes() const;  // the pinned part of it
    uint64_t piece_bytes() const;
    uint32_t threads() const;

private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace stagehand::transfer
