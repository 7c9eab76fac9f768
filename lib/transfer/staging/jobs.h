// Jobs: the loads, or the stores, of the staging engine. A job is queued, in work, or about to end.
#pragma once

#include <cstdint>
#include <vector>

#include "base/recycled.h"
#include "transfer/staging/deadline_queue.h"

namespace stagehand::transfer {

// The queue holds the jobs that wait for a worker. Records are used again, so that a steady state allocates nothing.
// Guarded by the engine's mutex.
template <class Progress>
class Jobs : public DeadlineQueue<Progress> {
public:
    // Makes room for `count` jobs at once. More jobs allocate when they come.
    void expect(size_t count) {
        records_.expect(count);
        ending_.reserve(count);
    }
    // Returns a record for a new job, and makes room for it in all lists. `prepare` is called for a record that was
    // never used.
    template <class Prepare>
    Progress& take(Prepare&& prepare) {
        return records_.take([&](Progress& made) {
            const size_t count = records_.all().size() + 1;
            ending_.reserve(count);
            this->reserve(count);
            prepare(made);
        });
    }
    // Queues the job. Later jobs with the same deadline come after it.
    void begin(Progress& progress) {
        progress.sequence = sequence_++;
        this->push(progress);
    }
    // The job has no work left, except to notify its owner. A worker will do that.
    void end_soon(Progress& progress) { ending_.push_back(&progress); }
    bool any_ending() const { return !ending_.empty(); }
    Progress* take_ending() {
        Progress* const progress = ending_.back();
        ending_.pop_back();
        return progress;
    }
    void give_back(Progress& progress) { records_.give(progress); }

private:
    Recycled<Progress> records_;
    std::vector<Progress*> ending_;
    uint64_t sequence_ = 0;
};

}  // namespace stagehand::transfer
