// StagingEngine: moves what is not pinned between host and device through a ring of pinned buffers filled by
// worker threads. One a device: all runtimes' staged loads and write-backs meet here, ordered by deadline,
// one queue per direction.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/source/source.h"

namespace stagehand::transfer {

// A contiguous piece of a load: source bytes that belong at a device address. Events that the copy stream
// must wait for before the first byte is written are a range of StagedLoad::waits; neighbours may share a
// range.
struct StagedExtent {
    const Source* source = nullptr;
    uint64_t source_offset = 0;
    uint64_t device_address = 0;
    uint64_t bytes = 0;
    uint32_t first_wait = 0;
    uint32_t wait_count = 0;
};

// A load in parts. Owned by the submitter and unchanged by it from submit() until `finished` was called or
// cancel() returned true. The vectors keep their capacity from use to use, so that a steady state allocates
// nothing.
struct StagedLoad {
    sh_stream stream = 0;               // copies are issued here, in any order, each after its waits
    uint64_t deadline_ns = 0;           // of the device's clock: earlier ones first; 0 is most urgent
    std::vector<StagedExtent> extents;  // by device address, not overlapping
    std::vector<sh_backend_event> waits;
    // Called exactly once, on a worker thread without locks of the engine: with success after the last copy
    // was issued to `stream` (not: has finished), else with what failed or SH_ERROR_CANCELLED, when no more
    // copies will be issued. Those that were issued before a failure may still run on `stream`: what next
    // uses their device addresses comes after them there. Sources are not read any more.
    void (*finished)(void* context, StagedLoad& load, const Status& status) = nullptr;
    void* context = nullptr;
    uint64_t issued_pieces = 0;  // filled by the engine before `finished`: copy commands and their bytes
    uint64_t issued_bytes = 0;
    // Bookkeeping of the engine while it has the load.
    struct Progress;
    Progress* progress = nullptr;
};

// A write-back: device bytes into host memory, straight where that is pinned. Owned and unchanged like a load.
struct StagedStore {
    struct Extent {
        void* host = nullptr;
        uint64_t device_address = 0;
        uint64_t bytes = 0;
    };
    sh_stream stream = 0;  // the device-to-host copy stream
    uint64_t deadline_ns = 0;
    std::vector<Extent> extents;
    std::vector<sh_backend_event> waits;  // before the first copy
    // Recorded on `stream` after the last copy: pages may be reused after it. 0: none.
    sh_backend_event read = 0;
    // On a worker thread, before `finished`: `read` has been recorded. Not after a failure. May be null.
    void (*device_read)(void* context, StagedStore& store) = nullptr;
    // Exactly once, on a worker thread: the bytes are in host memory; or what failed, and then any part of
    // the host memory may have been written. Nothing writes there any more.
    void (*finished)(void* context, StagedStore& store, const Status& status) = nullptr;
    void* context = nullptr;
    struct Progress;
    Progress* progress = nullptr;
};

struct StagingOptions {
    uint64_t ring_bytes = 0;   // 0: by the backend's piece size and the number of workers
    uint32_t threads = 0;      // 0: by the number of cores
    uint64_t piece_bytes = 0;  // 0: the backend's best piece
};

class StagingEngine {
public:
    // Starts nothing and allocates nothing until the first submit().
    StagingEngine(BackendDevice& device, const StagingOptions& options);
    // Every load and store has finished or was cancelled; copies that still run are waited for. Not from a
    // callback. What is queued against this rule ends with SH_ERROR_CANCELLED.
    ~StagingEngine();
    StagingEngine(const StagingEngine&) = delete;
    StagingEngine& operator=(const StagingEngine&) = delete;

    // Queues a load. An error (no host memory for the ring, no thread, a device that does not tell any more
    // when copies are done) means that it was not queued and `finished` is not called. The first one blocks
    // while the ring is pinned; later ones take a mutex that is held for list operations only. Thread-safe,
    // as are the others.
    Status submit(StagedLoad& load);
    Status submit(StagedStore& store);

    // True: it was taken back before any work on it began, and `finished` will not be called. False: it will
    // be (or was), and with SH_ERROR_CANCELLED if its remaining pieces could still be dropped.
    bool cancel(StagedLoad& load);

    // Brings a queued load forward: somebody waits for it.
    void hurry(StagedLoad& load, uint64_t deadline_ns);

    uint64_t ring_bytes() const;    // host memory held
    uint64_t pinned_bytes() const;  // part of it that is pinned
    uint64_t piece_bytes() const;
    uint32_t threads() const;

private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace stagehand::transfer
