// ComputeMeter: measures how long the engine computes with each unit of a step, from acquire to release.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend_device.h"
#include "backend/timed_span.h"
#include "base/status.h"
#include "core/memory/block.h"
#include "core/plan/order.h"

namespace stagehand::core {

// The host's stream is measured by the clock. Other streams are measured by pairs of timing events. The times of a
// first step are read at the edge after the step. Those of a later one, a sample, are read as soon as the events are
// done.
class ComputeMeter {
public:
    explicit ComputeMeter(BackendDevice& device) : device_(device) {}

    bool measuring() const { return measuring_; }
    // True if there are times of a first step to read.
    bool measured() const { return measuring_ && !sample_ && count_ > 0; }
    void start() { begin_measuring(false); }
    void stop() { measuring_ = false; }

    void start_sample() { begin_measuring(true); }
    void end_sample() {
        if (sample_) measuring_ = false;
    }
    // True if a sample has ended that was not read.
    bool has_sample() const { return sample_ && !measuring_; }
    void drop_sample() {
        if (sample_) measuring_ = sample_ = false;
    }
    enum class Read : uint8_t { yes, not_yet, never };
    // Reads a sample into one time for each of the entries, and forgets it unless its events are not done. It never
    // waits. `never`: the step did not follow the entries, or the driver failed.
    Read read_sample(const std::vector<Order::Entry>& entries, std::vector<uint64_t>* times);

    // begin(): the first view of a use was taken on the stream. end(): the last view was released. A failure only loses
    // the measurement.
    void begin(uint32_t unit, sh_stream stream);
    void end(uint32_t unit, sh_stream stream);

    // Forgets units that are gone, so that their times are not taken for those of new units with the same index.
    template <class IsGone>
    void forget(IsGone is_gone) {
        for (size_t i = 0; i < count_; i++)
            if (spans_[i].unit != kNone && is_gone(spans_[i].unit)) spans_[i].unit = kNone;
    }

    // Reads the times into the order's entries, use by use in sequence. Returns true if any time was read. May wait for
    // the last use.
    bool read(std::vector<Order::Entry>* entries);

private:
    struct Span {
        explicit Span(BackendDevice& device) : on_device(device) {}

        TimedSpan on_device;
        uint32_t unit = 0;
        bool open = false;
        bool by_events = false;
        uint64_t begin_ns = 0, end_ns = 0;
    };

    void begin_measuring(bool sample) {
        measuring_ = true;
        sample_ = sample;
        count_ = 0;
    }
    Read read_times(const std::vector<Order::Entry>& entries, std::vector<uint64_t>* times);

    BackendDevice& device_;
    std::vector<Span> spans_;  // the first count_ belong to this step; the others keep their events
    size_t count_ = 0;
    bool measuring_ = false;
    bool sample_ = false;
};

}  // namespace stagehand::core
