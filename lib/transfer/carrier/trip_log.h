// TripLog: which trips with relayed bytes are right. Pure bookkeeping.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace stagehand::transfer {

// Trips are numbered from 1 on, in the order in which their copies were queued. One is right if its copies have ended
// and the helpers work after that.
class TripLog {
public:
    // Trips in (after, until].
    struct Range {
        uint64_t after = 0, until = 0;
        bool empty() const { return after == until; }
        bool has(uint64_t number) const { return number > after && number <= until; }
    };

    uint64_t add() { return ++last_; }
    bool all_known() const { return last_ == known_; }

    // An event was recorded after all trips until now, or could not be.
    void marked(bool recorded) { passing_ = recorded ? last_ : 0; }
    bool is_marked() const { return passing_ != 0; }
    // That event had come before the helpers were found to work.
    void passed() { known_ = std::max(known_, std::exchange(passing_, 0)); }

    // A helper has failed: nobody knows which of the trips that are not known it has brought right.
    void fail() {
        times_wrong_++;
        wrong_ = {wrong_.empty() ? known_ : wrong_.after, last_};
        known_ = last_;
        passing_ = 0;
    }
    Range take_wrong() { return std::exchange(wrong_, {}); }
    uint64_t times_wrong() const { return times_wrong_; }

private:
    uint64_t last_ = 0, known_ = 0;  // the trips until `known_` are right, or are told to be wrong
    uint64_t passing_ = 0;           // the last one before the event; 0: none was recorded
    uint64_t times_wrong_ = 0;
    Range wrong_;
};

}  // namespace stagehand::transfer
