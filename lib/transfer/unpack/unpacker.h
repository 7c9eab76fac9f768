// Unpacker: brings packed tensors to the device packed, and unpacks them there.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/carrier/carrier.h"
#include "transfer/carrier/issue.h"
#include "transfer/lane/lane.h"
#include "transfer/unpack/batches.h"

namespace stagehand::transfer {

// Copies run on a stream of the unpacker, into slots that take turns. The stream of the loads, which is always the
// same, unpacks a slot when its copy has come, so the link brings the next slot meanwhile. A load whose pages are still
// used keeps its slots until they are free. All waits are for work that was queued before.
//
// The owner opens and closes it while no load uses it. Several threads may issue.
class Unpacker {
public:
    Unpacker(BackendDevice& device, Carrier& carrier) : device_(device), carrier_(carrier) {}
    ~Unpacker();
    Unpacker(const Unpacker&) = delete;
    Unpacker& operator=(const Unpacker&) = delete;

    // The least memory that slots of any format fit into.
    static uint64_t least_bytes();

    // Uses this memory of the device from now on. On failure nothing is held.
    Status open(Lanes& lanes, uint64_t address, uint64_t bytes);
    // For a capture, which only records: a launch of the graph copies and unpacks. It finds all kept chunks on
    // the device. All streams that are used from now on belong to the capture.
    Status open_to_record(Lanes& lanes, uint64_t address, uint64_t bytes);
    // Makes the captured stream wait for the copies that were recorded.
    Status end_record(sh_stream stream);
    bool has_recorded() const { return joined_; }
    // Waits until nothing uses the memory.
    Status close();
    bool is_open() const { return lane_.is_open(); }
    bool records() const { return records_; }
    uint64_t address() const { return slots_[0].address; }  // of the memory, or 0
    // What is queued from now on comes after the event. `stream` is that of the loads.
    Status follow(sh_stream stream, sh_backend_event event);
    // Makes the stream wait for all that was queued. `event` is one that nothing else uses.
    Status lead(sh_stream stream, sh_backend_event event);
    // Measures how many bytes of contents the device unpacks in a nanosecond, before the first load.
    Status measure(double* bytes_per_ns);

    uint64_t slot_bytes_in(uint64_t bytes) const;        // the room for a batch in so much memory
    uint64_t slot_bytes() const { return slot_bytes_; }  // the room for a batch

    // Queues the copies of a batch of these extents, and their unpacking on `stream`. Kept chunks are copied once, to
    // where they stay. `from` is pinned memory that holds the chunks, in pieces of `pinned_piece` bytes that no copy
    // may span, or 0. The first of them ends `to_border` bytes after `from`. Waits are as for issue(). `out_copies`
    // gets the stream of the last copy.
    struct Chunks {
        const void* from = nullptr;
        uint64_t pinned_piece = 0, to_border = 0;
    };
    Status issue(sh_stream stream, std::span<const PackedExtent> extents, const Batches& batches, const Batch& batch,
                 const Chunks& chunks, std::span<const sh_backend_event> events, WaitSet* waited, Issued* out,
                 sh_stream* out_copies);
    // Cuts extents in pinned memory into batches, and queues them all. Stops at the first failure. Only one thread at a
    // time may call this.
    Status issue(sh_stream stream, std::span<const PackedExtent> extents, std::span<const sh_backend_event> events,
                 WaitSet* waited, Issued* out);
    // Brings the kept chunks of a segment in pinned memory that are not there. What is queued on `stream` from then on
    // finds them.
    Status bring_kept(sh_stream stream, const Segment& segment, Issued* out);
    // After a failure of issue(), no stream may wait for some of the copies: waits for them on the host. Any thread may
    // call this.
    Status synchronize();

private:
    static constexpr uint32_t kSlots = 3, kMostSlots = 12;

    struct Slot {
        uint64_t address = 0;
        sh_backend_event filled = 0, free = 0;
    };

    uint32_t slots_in(uint64_t bytes) const;
    static Chunks pinned_chunks(const Batch& batch);
    Status make(Lanes& lanes, uint64_t address, uint64_t bytes);
    Status recover(sh_stream stream);
    Status free_all_after(sh_stream stream);
    Status synchronize_all();
    Status queue(sh_stream stream, const Batches& batches, const Batch& batch, const Chunks& chunks, Issued* out,
                 sh_stream* out_copies);
    Status copy(const Batch& batch, const Chunks& chunks, const Slot& slot, uint64_t to, Issued* out,
                sh_stream* out_copies);
    Status unpack(sh_stream stream, const Batch& batch, const Unpacking& part, uint64_t packed_at);
    Status unpack(sh_stream stream, const Batches& batches, const Batch& batch, uint64_t packed_at);
    void forget();

    BackendDevice& device_;
    Carrier& carrier_;
    Lane lane_;                      // of the copies
    std::vector<Command> commands_;  // of the copy under way
    Slot slots_[kMostSlots];
    uint32_t slot_count_ = kSlots;
    uint64_t slot_bytes_ = 0, scratch_ = 0;
    std::atomic<sh_stream> unpacks_on_ = 0;  // the stream of the loads, once there was one
    std::mutex mutex_;                       // of the turns of the slots
    uint32_t next_ = 0;
    bool records_ = false;  // for a capture
    bool joined_ = false;   // the capture
    // The copies' stream if a failure left a slot in a state that its events do not tell. 0: none did.
    std::atomic<sh_stream> broken_off_ = 0;
    Batches batches_;  // of pinned memory
};

}  // namespace stagehand::transfer
