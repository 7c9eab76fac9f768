// Departures: foresees how many saved bytes of a step leave the device, so that they can leave from its beginning on.
#pragma once

#include <cstdint>

#include "policy/watermarks.h"

namespace stagehand::policy {

// A limit is reached late in a forward. Copies that begin only then have little computing left to hide behind. So a
// step sends away at once what the step before it sent away in all, the oldest tensors first: they are needed last.
class Departures {
public:
    explicit Departures(const KeepLimits& limits) : limits_(limits) {}

    void begin_step();
    // The state of the memory after a tensor was saved. `away` are the saved bytes that only the host has.
    void saw(const MemoryInUse& now, uint64_t away);
    void left(uint64_t bytes) { left_ += bytes; }
    // Whether a tensor leaves now although no limit asks for it.
    bool is_due() const { return left_ < foreseen_; }
    // A step that saved nothing (a validation) leaves what is foreseen as it was.
    void end_step();

private:
    const KeepLimits limits_;
    uint64_t foreseen_ = 0;        // bytes that leave in a step
    uint64_t left_ = 0;            // in this step
    uint64_t saved_peak_ = 0;      // saved bytes at one moment of this step, wherever they are
    uint64_t remaining_peak_ = 0;  // device memory in use but for what was leaving
};

}  // namespace stagehand::policy
