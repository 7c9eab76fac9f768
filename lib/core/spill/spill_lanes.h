// SpillLanes: queues the copies of saved tensors, out to the host and back, and the waits between them and the engine's
// streams.
#pragma once

#include <cstdint>
#include <span>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/device/device.h"
#include "core/device/helped_lane.h"
#include "core/spill/copies.h"
#include "core/spill/stalls.h"
#include "core/spill/trust.h"

namespace stagehand::core {

// What failed, and whether a copy may be under way all the same.
struct Queued {
    Status status;
    bool doubtful = false;  // the copy was queued, and nothing tells when it ends
};

// Copies of one direction end in the order in which they were queued. The spiller's mutex guards it.
class SpillLanes {
public:
    explicit SpillLanes(Device& device);
    ~SpillLanes();
    SpillLanes(const SpillLanes&) = delete;
    SpillLanes& operator=(const SpillLanes&) = delete;

    // `packs`: tensors of a known format cross the link packed, if the device can do it.
    Status open(bool packs);
    // Whether a copy that leaves now would be packed. Helpers bring more than packing does.
    bool packs(const SavedCopy& copy) const;
    // The device's helpers copy a part from now on, if so many bytes a step are worth it; or no more. disband() waits
    // for what they copy.
    void gather(uint64_t bytes);
    void disband();
    bool is_helped() const { return to_host_.helped(); }
    uint64_t helped_bytes() const { return to_host_.helped_bytes() + to_device_.helped_bytes(); }
    // SH_ERROR_UNSUPPORTED if the stream captures a graph: a replay would not know the ticket. Each call of the engine
    // that queues copies begins with this.
    Status check_stream(sh_stream stream);
    // A call of the engine begins. Finds out, without a wait, which copies of helpers are right.
    void begin_call();

    // Queues the copy into the host buffer, after the work that is on the copy's streams now, and after the last
    // copy out of the buffer. Numbers the copy.
    Queued out(SavedCopy& copy);
    // Has the copies that come back wait for the work that is on `stream` now.
    Status come_back_after(sh_stream stream);
    // Queues the copy from the host buffer to `address`, after the copy into the buffer.
    Queued back(SavedCopy& copy, uint64_t address);

    // Fails if a helper has failed that may have copied a part of it.
    Status has_left(const SavedCopy& copy, bool* out);
    // The same of a copy that has left, as a stream knows. Waits on the host if a helper was at it, and nobody knows
    // yet whether it has ended.
    Status check_left(const SavedCopy& copy);
    // Whether check_left() would not have to wait.
    bool may_come_back(const SavedCopy& copy);
    // Whether a helper has failed that may have copied a part of it, as far as the calls above have found out.
    bool is_lost(const SavedCopy& copy) const { return copy.helped && out_.is_lost(copy.departure); }
    // The same of the last copy back. Asks if it has ended.
    bool is_return_lost(const SavedCopy& copy);
    // Fails, once, if a helper has failed that may have brought back a part of tensors that streams use already.
    Status check_returns();
    // Whether a helper that has failed may still write a buffer. Until end_doubt() has succeeded, none is filled or
    // freed.
    bool host_is_doubtful() const { return to_host_.host_is_doubtful(); }
    Status end_doubt() { return to_host_.end_doubt(); }
    void end_reads() { to_device_.end_reads(); }
    // These make the stream wait for the copy out, or for the copy back. SH_STREAM_HOST means that the caller waits,
    // and so does a stream that cannot wait.
    Status wait_for_out(const SavedCopy& copy, sh_stream stream);
    Status wait_for_back(const SavedCopy& copy, sh_stream stream);
    // Waits until no copy is under way. SH_ERROR_DEVICE_LOST if the driver cannot tell.
    Status settle();

    Stalls& stalls() { return stalls_; }
    sh_stream to_host() const { return to_host_.stream(); }

private:
    Status come_after(sh_stream lane, sh_stream stream, sh_backend_event fence);
    Status leave_after(const StreamSet& streams);
    sh_backend_event fence_of(const StreamSet& streams) const { return streams.size() ? leaves_after_ : 0; }
    Status in_pieces(HelpedLane& lane, Trust& trust, uint64_t address, transfer::PoolBuffer& buffer, uint64_t bytes,
                     bool* doubtful);
    Status ask_whether_captures(sh_stream stream);
    Status lane_waits(sh_stream lane, sh_backend_event event, uint64_t number, uint64_t* waited_for);
    bool has_ended(sh_backend_event event);
    Status end_of_copy(HelpedLane& lane, sh_backend_event event, bool* doubtful);
    Status leave_with_help(const SavedCopy& copy);
    Status pack(SavedCopy& copy, bool* doubtful);
    static Status packed(HelpedLane& lane, const sh_backend_tiles& tiles, std::span<const sh_backend_event> after,
                         bool* doubtful);
    Status wait(sh_backend_event event, sh_stream stream);
    Status wait_on_host(sh_backend_event event);

    BackendDevice& device_;
    HelpedLane to_host_, to_device_;
    // Recorded anew each time: a queued wait keeps the record that it saw.
    sh_backend_event leaves_after_ = 0, comes_back_after_ = 0;
    sh_stream checked_ = SH_STREAM_HOST;  // in the call of the engine that is under way
    // Copies of a lane end in their order, so a lane that waits for one of the other lane has waited for all before it.
    uint64_t departures_waited_for_ = 0, returns_waited_for_ = 0;
    Trust out_, back_;      // number the departures and the returns
    uint32_t unasked_ = 0;  // waits that began without a look whether the copy had ended
    bool ended_ = true;     // whether the copy had ended at the last look
    Stalls stalls_;
    bool packs_ = false;
};

}  // namespace stagehand::core
