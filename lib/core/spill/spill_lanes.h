// SpillLanes: queues the copies of saved tensors, out to the host and back, and the waits between them and the engine's
// streams.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/device/copy_lane.h"
#include "core/device/device.h"
#include "core/spill/copies.h"
#include "core/spill/stalls.h"

namespace stagehand::core {

// Copies of one direction end in the order in which they were queued. A call that fails has waited for what it had
// queued, unless the lanes are not settled afterwards. The spiller's mutex guards it.
class SpillLanes {
public:
    explicit SpillLanes(Device& device);
    SpillLanes(const SpillLanes&) = delete;
    SpillLanes& operator=(const SpillLanes&) = delete;

    // `packs`: tensors of a known format cross the link packed, if the device can do it.
    Status open(bool packs);
    // Whether a copy that leaves now would be packed.
    bool packs(const SavedCopy& copy) const;
    // SH_ERROR_UNSUPPORTED if the stream captures a graph: a replay would not know the ticket. Each call of the engine
    // that queues copies begins with this.
    Status check_stream(sh_stream stream);
    void begin_call();  // of the engine

    // Queues the copy into the host buffer, after the work that is on the copy's streams now, and after the last
    // copy out of the buffer. Numbers the copy.
    Status out(SavedCopy& copy);
    // Has the copies that come back wait for the work that is on `stream` now.
    Status come_back_after(sh_stream stream);
    // Queues the copy from the host buffer to `address`, after the copy into the buffer.
    Status back(SavedCopy& copy, uint64_t address);

    Status has_left(const SavedCopy& copy, bool* out);
    // These make the stream wait for the copy out, or for the copy back. SH_STREAM_HOST means that the caller waits,
    // and so does a stream that cannot wait.
    Status wait_for_out(const SavedCopy& copy, sh_stream stream);
    Status wait_for_back(const SavedCopy& copy, sh_stream stream);
    // Waits until no copy is under way. SH_ERROR_DEVICE_LOST if the driver cannot tell.
    Status settle();
    // Waits for the copies that use a buffer.
    Status settle(const transfer::PoolBuffer& buffer);
    // If not, any copy may still use its memory, and only settle() tells when it does not.
    bool are_settled() const { return to_host_.is_settled() && to_device_.is_settled(); }

    Stalls& stalls() { return stalls_; }
    CopyLane& to_host() { return to_host_; }

private:
    Status come_after(CopyLane& lane, sh_stream stream);
    Status leave_after(const StreamSet& streams);
    Status in_pieces(CopyLane& lane, uint64_t address, transfer::PoolBuffer& buffer, uint64_t bytes);
    Status ask_whether_captures(sh_stream stream);
    Status lane_waits(CopyLane& lane, const CopyLane& other, transfer::Trip trip, transfer::Trip* waited_for);
    bool has_ended(CopyLane& lane, transfer::Trip trip);
    static Status end_trip(CopyLane& lane, transfer::Trip* out);
    static Status packed(CopyLane& lane, const sh_backend_tiles& tiles, std::initializer_list<CopyLane::End> after);
    Status wait(CopyLane& lane, transfer::Trip trip, sh_stream stream);
    Status wait_on_host(CopyLane& lane, transfer::Trip trip);

    BackendDevice& device_;
    CopyLane to_host_, to_device_;
    sh_stream checked_ = SH_STREAM_HOST;  // in the call of the engine that is under way
    // Copies of a lane end in their order, so a lane that waits for one of the other lane has waited for all before it.
    transfer::Trip departures_waited_for_ = 0, returns_waited_for_ = 0;
    uint32_t unasked_ = 0;  // waits that began without a look whether the copy had ended
    bool ended_ = true;     // whether the copy had ended at the last look
    Stalls stalls_;
    bool packs_ = false;
};

}  // namespace stagehand::core
