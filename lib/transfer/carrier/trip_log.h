// TripLog: which trips are right. Pure bookkeeping.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "transfer/carrier/carrier.h"

namespace stagehand::transfer {

// Trips are numbered from 1 on, in the order in which they begin. One is right if its copies have ended and the helpers
// work after that.
class TripLog {
public:
    // So many failures are expected, for which nothing is allocated.
    void reserve(size_t failures) { wrong_.reserve(failures); }
    Trip begin() { return ++last_; }
    // The trip has ended, and is not known to be right.
    void doubt(Trip trip) { doubted_ = std::max(doubted_, trip); }
    bool all_known() const { return doubted_ <= known_; }

    // An event was recorded after all copies until now, or could not be. The trips until `last` have ended.
    void marked(bool recorded, Trip last) { passing_ = recorded ? last : 0; }
    bool is_marked() const { return passing_ != 0; }
    // That event had come before the helpers were found to work.
    void passed() { known_ = std::max(known_, std::exchange(passing_, 0)); }

    // A helper has failed: nobody knows which of the trips that are not known it has brought right.
    void fail() {
        wrong_.push_back({known_, last_});
        known_ = last_;
        passing_ = 0;
    }
    Answer ask(Trip trip) const {
        for (const Range& range : wrong_)
            if (trip > range.after && trip <= range.until) return Answer::wrong;
        return trip > known_ ? Answer::unknown : Answer::right;
    }
    Trip last() const { return last_; }
    uint64_t times_wrong() const { return wrong_.size(); }

private:
    struct Range {  // (after, until]
        Trip after = 0, until = 0;
    };

    Trip last_ = 0, known_ = 0;  // it is known of the trips until `known_` whether they are right
    Trip doubted_ = 0;           // the last one that is not known to be right, or was not
    Trip passing_ = 0;           // the last one before the event; 0: none was recorded
    std::vector<Range> wrong_;
};

}  // namespace stagehand::transfer
