// ComputeMeter: measures how long the engine computes with each unit, from acquire to release, while the times are not
// known.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/plan/order.h"

namespace stagehand::core {

// The host's stream is measured by the clock. Other streams are measured by pairs of timing events, which are read at
// the edge after the step.
class ComputeMeter {
public:
    explicit ComputeMeter(BackendDevice& device) : device_(device) {}
    ~ComputeMeter();

    bool measuring() const { return measuring_; }
    // True if there are times to read.
    bool measured() const { return measuring_ && count_ > 0; }
    void start() {
        measuring_ = true;
        count_ = 0;
    }
    void stop() { measuring_ = false; }

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
        uint32_t unit = 0;
        bool open = false;
        bool by_events = false;
        uint64_t begin_ns = 0, end_ns = 0;
        sh_backend_event begin = 0, end = 0;
    };

    BackendDevice& device_;
    std::vector<Span> spans_;  // the first count_ belong to this step; the others keep their events
    size_t count_ = 0;
    bool measuring_ = false;
};

}  // namespace stagehand::core
