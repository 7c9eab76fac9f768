// ComputeMeter: how long the engine computes with each unit, measured from acquire to release while the times are not known.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/runtime/order.h"

namespace stagehand::core {

// On the host's stream by the clock; on others by pairs of timing events that are read after the step, at its next edge.
class ComputeMeter {
public:
    explicit ComputeMeter(BackendDevice& device) : device_(device) {}
    ~ComputeMeter();

    bool measuring() const { return measuring_; }
    // There is something to read.
    bool measured() const { return measuring_ && count_ > 0; }
    void start() {
        measuring_ = true;
        count_ = 0;
    }
    void stop() { measuring_ = false; }

    // A unit's first view of a use was taken on the stream, or its last released. A failure only costs the measurement.
    void begin(uint32_t unit, sh_stream stream);
    void end(uint32_t unit, sh_stream stream);

    // Units that are gone: the times are not those of whatever comes in their places.
    template <class IsGone>
    void forget(IsGone is_gone) {
        for (size_t i = 0; i < count_; i++)
            if (spans_[i].unit != kNone && is_gone(spans_[i].unit)) spans_[i].unit = kNone;
    }

    // Reads the times into the order's entries, use by use in their sequence; true if any was read. May wait for the last use.
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
    std::vector<Span> spans_;   // the first count_ are of this step; the others keep their events
    size_t count_ = 0;
    bool measuring_ = false;
};

}  // namespace stagehand::core
