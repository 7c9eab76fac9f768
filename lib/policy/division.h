// Dividing memory among models by marginal value: time saved per byte, at each one's rate of use.
//
// A model's step gets shorter with the memory it has, by so much for each page, until the copies hide behind
// the compute: from there on more memory gains nothing. So each page goes where (rate of use) x (time saved
// by one more page) is largest. Where curves are convex this greedy choice is the best division there is;
// elsewhere it works on their lower convex hulls. A model whose compute hides its copies gives, one that
// waits for the link receives.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stagehand::policy {

// A model's steady step with so much memory. Linear between points, constant before the first and after the
// last.
struct CurvePoint {
    uint64_t pages = 0;
    double step_ns = 0;
};

struct Stake {
    uint64_t floor_pages = 0;           // it has these in any case
    uint64_t most_pages = 0;            // gains nothing beyond; the floor at least
    double steps_per_second = 0;        // rate of use; negative, infinite or not a number counts as 0
    std::span<const CurvePoint> curve;  // ascending pages, falling time; may be empty: the step is not known
};

// Values of a page that are this close count as equal, and share in proportion to their room: curves are not
// more exact than that, and equal models get equal shares instead of all or nothing.
inline constexpr double value_tolerance = 0.01;

// The pages that each one gets, floors included: first where they save most time, then, when nobody would
// gain any more, in proportion to the room that is left up to `most_pages`. Stakes without a curve or a rate
// take part only in the latter. Adds up to `pages`, or to the sum of most_pages where that is less. The same
// for the same stakes. Nothing if the floors exceed `pages`. O(n log n) in the number of points of all curves.
std::optional<std::vector<uint64_t>> divide_by_value(uint64_t pages, std::span<const Stake> stakes);

// Nanoseconds of steps asked for in each second: the sum of rate x step. 10^9 is all the time there is. One
// share for each stake.
double time_per_second(std::span<const Stake> stakes, std::span<const uint64_t> shares);

// Hysteresis. A change costs plans and copies, and rates of use are measured, so they fluctuate. New shares
// are worth it if they save 2 % of the time per second or more, and those who gain save at least twice what
// those who give lose.
//
// Why twice: with rates that fluctuate by 30 % around their means, one stake's may seem 1.3 / 0.7 = 1.86 times
// as large, beside another's, as they are. Shares that are right at the means thus never change, since there
// no move gains more than it loses, and none seems to gain more than 1.86 times that. A rate that grows or falls to a
// third shifts the scale by 3. What is left on the table is bounded: less than half of the time per second, and
// only where the rates have moved by less than that factor.
// Why 2 %: one plan and one copy of the moved pages are paid back within fifty steps at most.
inline constexpr double least_gain_over_loss = 2;
inline constexpr double least_saving = 0.02;

// Whether `then`, those for the stakes as they are now, should replace the shares in force. Also true where
// those in force cannot stay: they are not one for each stake, add up to more than the new ones do, or leave
// a stake below its floor.
bool worth_changing(std::span<const Stake> stakes, std::span<const uint64_t> now,
                    std::span<const uint64_t> then);

}  // namespace stagehand::policy
