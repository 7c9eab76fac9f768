// The choice of the models that give memory up when it is wanted: by priority class, then by the predicted time of next
// use over all models of a device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace stagehand::policy {

// The lower class gives first. The primary class never gives.
enum class Priority : uint8_t { none, secondary, primary };

// Pages of one unit, and the time of their next use, counted from the beginning of the holder's next step.
struct Part {
    uint64_t due_ns = 0;  // UINT64_MAX: never
    uint64_t pages = 0;
};

struct Holder {
    Priority priority = Priority::none;
    double next_step_ns = 0;      // when its next step is expected, counted from now; negative if it is late;
                                  // infinite or not a number: never
    uint64_t spare_pages = 0;     // the holder gives at most this many
    std::span<const Part> parts;  // by ascending due_ns, without protected and held pages
};

// The pages that each holder gives, until `pages` are found or all holders have given. Holders without a reservation
// give before those with a secondary one. Within a class, the pages with the furthest next use go first. Among parts
// that are due at the same time, those of earlier holders go first. A part may be given in part.
//
// The number of comparisons of times is stored in *out_comparisons if that is not null. For h holders it is about 2 h,
// plus one for each part that is given, plus 2 log2 h if the next part belongs to another holder. It depends on the
// number of parts that are given, not on the number of parts.
std::vector<uint64_t> choose_victims(uint64_t pages, std::span<const Holder> holders,
                                     uint64_t* out_comparisons = nullptr);

}  // namespace stagehand::policy
