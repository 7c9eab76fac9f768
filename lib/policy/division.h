// Divides memory among models by marginal value: the time saved per byte, at each model's rate of use.
//
// A model's step gets shorter with each page of memory, until the copies hide behind the compute. More memory gains
// nothing from there on. So each page goes where (rate of use) x (time saved by one more page) is largest. This greedy
// choice is the best division if the curves are convex. If they are not, it works on their lower convex hulls. A model
// whose compute hides its copies gives memory, and a model that waits for the link receives it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stagehand::policy {

// A model's steady step with this much memory. Linear between points, constant before the first point and after the
// last.
struct CurvePoint {
    uint64_t pages = 0;
    double step_ns = 0;
};

struct Stake {
    uint64_t floor_pages = 0;           // the model has these pages in any case
    uint64_t most_pages = 0;            // the model gains nothing beyond; at least the floor
    double steps_per_second = 0;        // rate of use; negative, infinite or not a number counts as 0
    std::span<const CurvePoint> curve;  // ascending pages, falling time; may be empty if the step is not known
};

// Page values that differ by at most this fraction count as equal, and share in proportion to their room. Curves are
// not more exact than that. So equal models get equal shares instead of all or nothing.
inline constexpr double value_tolerance = 0.01;

// The pages that each stake gets, including its floor. Pages go first to the stakes that save most time. When no stake
// would gain any more, pages go in proportion to the room that is left up to `most_pages`. Stakes without a curve or a
// rate take part only in the latter. The result adds up to `pages`, or to the sum of most_pages if that is less, and is
// the same for the same stakes. Nothing if the floors exceed `pages`. O(n log n) in the number of points of all curves.
std::optional<std::vector<uint64_t>> divide_by_value(uint64_t pages, std::span<const Stake> stakes);

// The nanoseconds of steps that are asked for in each second: the sum of rate x step. 10^9 is all the time that exists.
// `shares` has one entry for each stake.
double time_per_second(std::span<const Stake> stakes, std::span<const uint64_t> shares);

// Hysteresis. A change costs plans and copies, and measured rates of use fluctuate. So new shares are worth it if they
// save at least 2 % of the time per second, and if the gainers save at least twice what the givers lose.
//
// Why twice: if rates fluctuate by 30 % around their means, the rate of one stake may seem 1.3 / 0.7 = 1.86 times as
// large, beside another's, as it is. Shares that are right at the means then never change, because no move gains more
// than it loses there, and no move seems to gain more than 1.86 times its loss. A rate that grows to three times or
// falls to a third shifts the scale by 3. The unused gain is bounded: less than half of the time per second, and only
// if the rates have moved by less than that factor.
// Why 2 %: one plan and one copy of the moved pages pay off within fifty steps at most.
inline constexpr double least_gain_over_loss = 2;
inline constexpr double least_saving = 0.02;

// True if `then`, the shares for the stakes as they are now, should replace the shares in force. Also true if the
// shares in force cannot stay: they are not one for each stake, they add up to more than the new ones, or they leave a
// stake below its floor.
bool worth_changing(std::span<const Stake> stakes, std::span<const uint64_t> now, std::span<const uint64_t> then);

}  // namespace stagehand::policy
