// Stalls: measures how long streams of the engine wait for copies, without waiting itself.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "backend/backend_device.h"

namespace stagehand::core {

// The spiller's mutex guards it.
class Stalls {
public:
    explicit Stalls(BackendDevice& device) : device_(device) {}
    ~Stalls();
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
    struct Probe {
        sh_backend_event before = 0, after = 0;  // recorded just before the wait, and just after it
    };

    bool make_probe();
    bool read(const Probe& probe);

    BackendDevice& device_;
    std::deque<Probe> open_;
    std::vector<Probe> idle_;
    bool measuring_ = false;  // the newest open probe waits for its second event
    uint64_t count_ = 0;
    uint64_t ns_ = 0;
};

}  // namespace stagehand::core
