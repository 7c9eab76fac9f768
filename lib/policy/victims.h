// Who gives memory up when it is wanted: by priority class, then by predicted time of next use over all
// models of a device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace stagehand::policy {

// Whoever is lower gives first; primary never gives.
enum class Priority : uint8_t {
    none,
    secondary,
    primary
};

// Pages of one unit, and when it is used next, counted from the beginning of its holder's next step.
struct Part {
    uint64_t due_ns = 0;  // UINT64_MAX: never
    uint64_t pages = 0;
};

struct Holder {
    Priority priority = Priority::none;
    double next_step_ns = 0;      // when its next step is expected, counted from now, negative if it is late;
                                  // infinite or not a number: never
    uint64_t spare_pages = 0;     // it gives at most so much
    std::span<const Part> parts;  // by ascending due_ns; what is protected or held is not among them
};

// The pages that each holder gives: those used furthest in the future first, of holders without a
// reservation before those of secondary ones, until `pages` are found; fewer when all have given. Of parts due
// at the same time those of earlier holders go first. A part may be given in part.
//
// Comparisons of times (counted in *out_comparisons if that is not null): for h holders about 2 h, and for each
// part given one, and 2 log2 h more where the next one is another holder's. How many parts there are does not matter,
// only how many are given.
std::vector<uint64_t> choose_victims(uint64_t pages, std::span<const Holder> holders,
                                     uint64_t* out_comparisons = nullptr);

}  // namespace stagehand::policy
