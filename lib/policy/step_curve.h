// How a model's steady step falls with the memory it gets: what dividing memory among models goes by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/division.h"
#include "policy/plan.h"

namespace stagehand::policy {

// Points of the problem's curve (its budget_pages does not count) from `least_pages`, or the smallest budget
// that runs where that is more, to `most_pages`, or all pages where that is less: at most `points`, by
// ascending pages, never rising. Evaluates a few simple plans at each point, so it is an upper bound of what
// make_plan reaches, some percent above it, at a small part of the cost. Empty if nothing in the range runs or
// the problem is malformed.
std::vector<CurvePoint> step_curve(const Problem& problem, uint64_t least_pages, uint64_t most_pages,
                                   size_t points = 16);

}  // namespace stagehand::policy
