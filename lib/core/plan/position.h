// Position: where the engine is in the order that it follows.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/sequence.h"

namespace stagehand::core {

// The order is a hint, so any unit may come at any time. The position then jumps to the unit's next occurrence.
class Position {
public:
    // The position of the first entry whose uses have not all come.
    uint64_t cursor() const { return cursor_; }
    // The engine has not followed the order since the last edge of a step.
    bool deviated() const { return deviated_; }

    // Before the first entry of another sequence.
    void restart() noexcept { *this = {}; }
    // The engine has used what the record says, which the sequence begins with.
    void restart_after(const std::vector<Sequence::Entry>& record, const Sequence& sequence) noexcept;
    // A step begins or ends. The position moves to the edge of the step.
    void to_edge(const Sequence& sequence) noexcept;
    // The engine uses the unit now. Returns false if the unit does not occur in the sequence, which is not empty. Cheap
    // if the unit was expected.
    bool arrive(const Sequence& sequence, uint32_t unit) noexcept;

private:
    uint64_t cursor_ = 0;
    uint32_t arrived_ = 0;  // uses of the entry at the cursor that have come
    bool deviated_ = false;
};

}  // namespace stagehand::core
