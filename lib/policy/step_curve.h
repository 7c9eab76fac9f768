// The curve of a model's steady step over its memory. The division of memory among models uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/division.h"
#include "policy/plan.h"

namespace stagehand::policy {

// At most `points` points of the problem's curve, by ascending pages, never rising. Its budget_pages does not count.
// The curve starts at `least_pages`, or at the smallest budget that runs if that is larger. It ends at `most_pages`, or
// at all pages if these are fewer. More points lie where the curve bends. With whole units the curve is a stair, and
// both ends of a stair's step are given as far as the points last.
//
// The steps are those of plans that are searched like those of make_plan, but with a small part of its effort. They are
// some percent longer at worst between the points, and 1 % on average. For about a thousand uses in a step or more,
// hardly any plan is evaluated. The curve then assumes that the copies hide as well as possible, which is nearly true
// for units that are small compared with the memory. Takes some milliseconds at most, for any size.
//
// Empty if no budget in the range runs, or if the problem is malformed.
std::vector<CurvePoint> step_curve(const Problem& problem, uint64_t least_pages, uint64_t most_pages,
                                   size_t points = 16);

}  // namespace stagehand::policy
