// Unpacker: brings packed tensors from pinned memory to the device packed, and unpacks them there.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/lane/lane.h"
#include "transfer/route/issue.h"
#include "transfer/unpack/batches.h"

namespace stagehand::transfer {

// Copies run on a stream of the unpacker, into slots that take turns. The stream of the loads, which is always the
// same, unpacks a slot when its copy has come, so the link brings the next slot meanwhile. A load whose pages are still
// used keeps its slots until they are free. All waits are for work that was queued before.
class Unpacker {
public:
    explicit Unpacker(BackendDevice& device) : device_(device) {}
    ~Unpacker();
    Unpacker(const Unpacker&) = delete;
    Unpacker& operator=(const Unpacker&) = delete;

    // The least memory that slots of any format fit into.
    static uint64_t least_bytes();

    // Uses this memory of the device from now on. On failure nothing is held.
    Status open(Lanes& lanes, uint64_t address, uint64_t bytes);
    // Waits until nothing uses the memory.
    Status close();
    bool is_open() const { return lane_.is_open(); }
    // Measures how many bytes of contents the device unpacks in a nanosecond, before the first load.
    Status measure(double* bytes_per_ns);

    // Queues the copies of these extents, and their unpacking on `stream`. Waits are as for issue(). Stops at the first
    // failure.
    Status issue(sh_stream stream, std::span<const PackedExtent> extents, std::span<const sh_backend_event> events,
                 WaitSet* waited, Issued* out);
    // After a failure of issue(), no stream may wait for some of the copies: waits for them on the host. Any thread may
    // call this.
    Status synchronize();

private:
    static constexpr uint32_t kSlots = 3;

    struct Slot {
        uint64_t address = 0;
        sh_backend_event filled = 0, free = 0;
    };

    Status make(Lanes& lanes, uint64_t address, uint64_t bytes);
    Status recover(sh_stream stream);
    Status issue_batch(sh_stream stream, const Batch& batch, Issued* out);
    Status copy(const Batch& batch, const Slot& slot, Issued* out);
    Status unpack(sh_stream stream, const Batch& batch, const Unpacking& part, const Slot& slot);
    void forget();

    BackendDevice& device_;
    Lane lane_;  // of the copies
    Slot slots_[kSlots];
    uint64_t slot_bytes_ = 0, scratch_ = 0;
    uint32_t next_ = 0;
    // The copies' stream if a failure left a slot in a state that its events do not tell. 0: none did.
    std::atomic<sh_stream> broken_off_ = 0;
    Batches batches_;
};

}  // namespace stagehand::transfer
