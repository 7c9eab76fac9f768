// HelpedLane: a lane of a device, and the helpers whose links make a part of its copies.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/device/device.h"
#include "core/device/helpers.h"
#include "core/device/packed_turns.h"
#include "transfer/bond/bond.h"
#include "transfer/lane/lane.h"
#include "transfer/route/copy_meter.h"

namespace stagehand::core {

// Without helpers it is a lane like any other. One caller at a time, except in the methods that wait.
class HelpedLane {
public:
    // `brief`: helpers' memory is taken for the time of one call.
    HelpedLane(Device& device, transfer::Direction direction, bool brief);
    HelpedLane(const HelpedLane&) = delete;
    HelpedLane& operator=(const HelpedLane&) = delete;

    // Borrows the lane. May be repeated after a failure.
    Status open();
    bool is_open() const { return lane_.is_open(); }
    // The device's own part. What else is queued there comes between the copies.
    sh_stream stream() const { return lane_.stream(); }

    // Fewer bytes have been copied before the helpers' memory is there.
    static bool is_worth_helpers(uint64_t bytes);
    // meet() opens the helpers that the device's options name now. The caller holds no runtime's mutex. `purpose`: for
    // the log. take_helpers() takes their memory, if so many bytes are worth it. The log tells of those that cannot
    // help. gather() does both.
    Status meet(const std::string& purpose) { return helpers_.open(purpose); }
    void take_helpers(uint64_t bytes);
    void gather(uint64_t bytes, const std::string& purpose);
    // Lets the helpers go. See Helpers::rest().
    Status disband();

    // Helpers copy what is queued from now on after these events. The lane waits for them already. Without a call, they
    // wait for nothing. `written`: the host memory that they read is whole after this event, or 0.
    void come_after(std::span<const sh_backend_event> events, sh_backend_event written);
    // Queues a copy between the device and host memory, in the lane's direction.
    Status copy(uint64_t on_device, void* on_host, uint64_t bytes);
    // copy_packed() fails for want of a stream no more.
    Status get_ready_to_pack() { return turns_.open(); }
    // Packs elements into host memory, or unpacks them, in the lane's direction, after these events and beside the copy
    // before it. Only over the device's own link. What the lane is given later comes after it. `*doubtful`: it was
    // queued, and nothing tells when it ends.
    Status copy_packed(const sh_backend_tiles& tiles, std::span<const sh_backend_event> after, bool* doubtful);
    // Records the event after all copies.
    Status record(sh_backend_event event);
    // To be asked after an event has come. Fails if a helper has failed, so that the copies cannot be trusted.
    Status check() { return helped() ? helpers_.bond().check() : Status(); }
    // The number of helpers that have failed so that what they copied since the last check() may be wrong.
    size_t distrusted() const { return helpers_.bond().distrusted(); }
    bool helped() const { return gathered_; }
    // Whether a helper has failed since this was asked. What failed with it is worth another attempt, by the others.
    bool has_lost_helper();
    // Waits on the host for all copies, except those of helpers that have failed. settle(): for those of helpers alone.
    Status synchronize();
    Status settle() { return helped() ? helpers_.bond().settle() : Status(); }
    // Whether such a helper may still write host memory, until end_doubt() has succeeded. It may be let go already.
    bool host_is_doubtful() const { return helpers_.bond().host_is_doubtful(); }
    Status end_doubt() { return helpers_.bond().end_doubt(); }
    // Asks helpers that have failed whether they still read host memory. What they may read is not freed.
    void end_reads() { (void)helpers_.bond().end_reads().ok(); }

    uint64_t helped_bytes() const { return helpers_.bytes(); }  // that helpers have copied
    // Of the helpers that the lane has, in bytes per nanosecond.
    double helpers_speed() { return helped() ? helpers_.speed() : 0; }

private:
    LinkArbiter& link() { return device_.links().of(direction_); }

    Device& device_;
    const transfer::Direction direction_;
    transfer::Lane lane_;
    Helpers helpers_;
    transfer::BondedLoad bonded_;
    std::vector<sh_backend_event> after_;  // see come_after()
    transfer::WaitSet waited_;             // by the lane: all of them
    transfer::CopyMeter meter_;            // never runs, because the bond times the copies
    PackedTurns turns_;
    std::atomic<bool> gathered_ = false;
    size_t lost_ = 0;  // helpers, as has_lost_helper() has told
};

}  // namespace stagehand::core
