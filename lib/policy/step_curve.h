// How a model's steady step falls with the memory it gets: what dividing memory among models goes by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/division.h"
#include "policy/plan.h"

namespace stagehand::policy {

// At most `points` points of the problem's curve (its budget_pages does not count), by ascending pages, never
// rising: from `least_pages`, or the smallest budget that runs where that is more, to `most_pages`, or all
// pages where that is less. More of them lie where the curve bends; whole units make it a stair, of which both
// ends of a step are told as far as the points last.
//
// The steps are those of plans as make_plan searches them, with a small part of its effort: some percent
// longer at worst between the points, 1 % on the average. From a thousand uses a step on hardly any plan is
// evaluated: the copies are taken to hide as well as they could, which units that are small beside the memory
// come close to. Takes some milliseconds at most, for any size.
//
// Empty if nothing in the range runs, or the problem is malformed.
std::vector<CurvePoint> step_curve(const Problem& problem, uint64_t least_pages, uint64_t most_pages,
                                   size_t points = 16);

}  // namespace stagehand::policy
