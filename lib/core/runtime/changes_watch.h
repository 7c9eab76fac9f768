// ChangesWatch: which units the engine changes in each step, and whether the plan in force counts on that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/memory/changes.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class ChangesWatch {
public:
    ChangesWatch(const Changes& changes, Registry& registry) : changes_(changes), registry_(registry) {}

    // For each unit, whether the engine changes it in each step. Empty if it changes none.
    std::vector<bool> units() const;
    // Those that the plan in force counts on.
    const std::vector<bool>& planned() const { return planned_; }
    void plan_changed(std::vector<bool> units) noexcept {
        planned_ = std::move(units);
        differ_ = false;
    }
    // Before a step: finds out whether the engine changes much more or less than planned.
    void look();
    bool differ() const { return differ_; }

private:
    bool counts_on(size_t unit) const { return unit < planned_.size() && planned_[unit]; }

    const Changes& changes_;
    Registry& registry_;
    std::vector<bool> planned_;
    bool differ_ = false;
    uint32_t interval_ = 0, wait_ = 0;  // steps until the next look: in the whole, and left
};

}  // namespace stagehand::core
