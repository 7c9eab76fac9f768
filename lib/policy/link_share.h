// LinkShare: how far ahead the copies of saved tensors may be queued in a direction of the link that weights stream
// through, too.
#pragma once

#include <algorithm>
#include <cstdint>

namespace stagehand::policy {

// A copy that is queued can neither be overtaken by a later one nor be called back. So a queue of saved tensors that
// are needed late would hold up weights that are needed earlier. The class follows the queue in the time for which the
// engine computes, as the plans of its weights know it. Saved tensors may be queued as far as the link carries all that
// is queued until the next use of weights, when further loads of weights begin. Those that are needed before weights
// whose loads are queued may be queued anyway, because their turn comes first.
//
// Positions are nanoseconds of computing that the engines on the device have passed. Marks are bytes that were queued
// since the beginning.
class LinkShare {
public:
    // Bytes per nanosecond. 0: not known, and nothing is held back.
    void set_rate(double bytes_per_ns) { rate_ = bytes_per_ns; }

    // An engine has come to the next use of its weights. It computes for so long until the use after it. 0: not known.
    void passed(uint64_t ns);
    // A copy of weights was queued, which are needed when the engine has computed for so long. Returns its mark.
    uint64_t weights_queued(uint64_t bytes, uint64_t ahead_ns);
    // A copy of a saved tensor was queued. Returns its mark.
    uint64_t saved_queued(uint64_t bytes);
    // The engine goes on after the copy with this mark, so the link has carried what was queued before it.
    void arrived(uint64_t mark) { carried_ = std::max(carried_, static_cast<double>(mark)); }

    // Whether one more copy of a saved tensor may be queued, after `before` bytes that are about to be queued. It is
    // needed at the position `due`. The last copy may be larger than the room.
    bool has_room(uint64_t before, uint64_t due) const {
        return !is_shared() || due <= last_due_ || static_cast<double>(queued_ + before) < carried_ + room_;
    }

    uint64_t position() const { return position_; }

private:
    // Weights have streamed a short time ago, and it is known for how long the engine computes.
    bool is_shared() const { return rate_ > 0 && position_ < shared_until_; }

    double rate_ = 0;
    uint64_t queued_ = 0;  // bytes since the beginning
    double carried_ = 0;   // of them, at the position
    double room_ = 0;      // bytes that the link carries from the position until the next use
    uint64_t position_ = 0;
    uint64_t next_ = 0;          // the position of the next use
    uint64_t last_due_ = 0;      // the latest position at which weights are needed whose load is queued
    uint64_t shared_until_ = 0;  // without further weights
};

}  // namespace stagehand::policy
