// CopyMeter: times some of the copies that a lane makes, for the speed of the link.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend_device.h"
#include "backend/timed_span.h"

namespace stagehand::transfer {

// A copy is timed by an event before it, after what it waits for, and an event behind it. The times are read when the
// events are done, and never waited for. A failure only loses the measurement. Not thread-safe.
class CopyMeter {
public:
    static constexpr uint32_t kMost = 8;  // copies of a sample

    explicit CopyMeter(BackendDevice& device);
    CopyMeter(const CopyMeter&) = delete;
    CopyMeter& operator=(const CopyMeter&) = delete;

    // Forgets the sample before, and times copies of at least so many bytes, until there are kMost. They are spread
    // over as many copies as there were in the sample before.
    void start(uint64_t least_bytes);
    void stop() { running_ = false; }
    bool running() const { return running_; }

    // Before and after a copy. The copy is timed if begin() returns true.
    bool begin(sh_stream stream, uint64_t bytes);
    void end(sh_stream stream);

    enum class Read : uint8_t { yes, not_yet, never };
    // Reads the median speed of the copies that were timed. Each of them is expected to take `lone_copy_ns` more than
    // its bytes do. `never`: too few copies were timed, or that is most of their time.
    Read read(uint64_t lone_copy_ns, double* bytes_per_ns);

private:
    struct Timed {
        TimedSpan span;
        uint64_t bytes = 0;
    };

    std::vector<Timed> timed_;  // kMost
    uint32_t count_ = 0;
    uint64_t stride_ = 1, passed_ = 0, least_bytes_ = 0;
    bool running_ = false;
};

}  // namespace stagehand::transfer
