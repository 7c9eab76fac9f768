// The least memory for units outside the order.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace stagehand::policy {

// The units outside the order. An engine holds units that stay outside beside units of the order. So memory for the one
// kind does not help the other kind.
struct Outside {
    struct Unit {
        uint32_t index = 0;
        uint64_t pages = 0;
    };
    std::vector<Unit> to_learn = {};  // units that may join the order, which is being learned
    std::vector<Unit> to_stay = {};   // units that stay outside
    uint64_t pool_pages = 0;          // that the pools of sets could use, beside the units
    uint64_t least_pool_pages = 0;    // without which a set serves no call
    uint32_t max_held = 1;            // how many units of the order are held at once
    uint64_t asked_pages = 0;  // for units outside the order, as the engine asked for; 0: the largest unit decides
};

struct OutsideNeeds {
    uint64_t to_learn_pages = 0;   // for the units that may join the order
    uint64_t to_stay_pages = 0;    // for the units that stay outside
    std::optional<uint32_t> unit;  // the largest unit of the kind that needs more
    uint64_t pages() const { return to_learn_pages + to_stay_pages; }
};

OutsideNeeds needs_outside(const Outside& outside);

}  // namespace stagehand::policy
