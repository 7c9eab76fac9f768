// Stalls: measures how long streams of the engine wait for copies, without waiting itself.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "backend/backend_device.h"
#include "backend/timed_span.h"

namespace stagehand::core {

// The spiller's mutex guards it.
class Stalls {
public:
    explicit Stalls(BackendDevice& device) : device_(device) {}
    Stalls(const Stalls&) = delete;
    Stalls& operator=(const Stalls&) = delete;

    // Called around a wait of the stream. A wait that cannot be measured is left out.
    void stream_waits(sh_stream stream) noexcept;
    void stream_goes_on(sh_stream stream) noexcept;
    void host_waited(uint64_t ns);
    // Reads the waits that have ended.
    void look();
    // Forgets waits that have not ended.
    void forget();

    uint64_t count() const { return count_; }
    uint64_t ns() const { return ns_; }

private:
    bool make_probe();
    bool read(const TimedSpan& probe);

    BackendDevice& device_;
    std::deque<TimedSpan> open_;  // from just before each wait to just after it
    std::vector<TimedSpan> idle_;
    bool measuring_ = false;  // the newest open probe waits for its second event
    uint64_t count_ = 0;
    uint64_t ns_ = 0;
};

}  // namespace stagehand::core
