// Trust: which copies of a lane with helpers have the right bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/device/helped_lane.h"

namespace stagehand::core {

// A helper's failure is none of the device's, so the events of copies come all the same. What a helper has copied is
// right if the helper works after that. Copies are numbered from 1 on, in the order in which they end. The spiller's
// mutex guards it.
class Trust {
public:
    Trust(BackendDevice& device, HelpedLane& lane) : device_(device), lane_(lane) {}
    ~Trust();
    Trust(const Trust&) = delete;
    Trust& operator=(const Trust&) = delete;

    Status open() { return device_.event_create(false, &passed_); }
    // A copy was queued. Returns its number.
    uint64_t queued(bool helped);
    uint64_t last() const { return last_; }

    // All copies until this one have ended. Returns whether it is right.
    bool has_ended(uint64_t number);
    // Marks the end of the copies that were queued so far, and finds out whether those until the last mark are right.
    // Waits only if a helper has failed: see note_losses().
    void look();
    // Asks the lane which helpers have failed, after calls on it. Waits for the lane's copies if one has.
    void note_losses();

    bool is_right(uint64_t number) const { return number <= right_ && !is_lost(number); }
    bool is_lost(uint64_t number) const;
    // Whether copies were lost since the last call.
    bool take_losses();

private:
    // Copies after the first number until the last one.
    struct Range {
        uint64_t after = 0, until = 0;
    };
    static constexpr size_t kMostRanges = 8;  // more than devices that help

    BackendDevice& device_;
    HelpedLane& lane_;
    uint64_t last_ = 0, last_helped_ = 0;
    uint64_t right_ = 0;  // copies until this one are right, but for the lost ones
    std::array<Range, kMostRanges> lost_;
    size_t ranges_ = 0;
    size_t distrusted_ = 0;        // helpers, when the last range was added
    bool losses_ = false;          // see take_losses()
    sh_backend_event passed_ = 0;  // after the copies until `passing_`
    uint64_t passing_ = 0;         // 0: nothing is marked
};

}  // namespace stagehand::core
