// The search for a plan: first the families over the ring's size, then local moves, then fewer bytes in the same time.
#pragma once

#include <optional>
#include <span>
#include <variant>

#include "policy/evaluator.h"
#include "policy/mix.h"
#include "policy/plan.h"
#include "policy/shape.h"

namespace stagehand::policy {

struct Searched {
    Plan plan;
    std::optional<Candidate> candidate;  // nothing if all pages are resident
};

// The problem of the shape must be well formed.
std::variant<Searched, Infeasible> search_plan(const Shape& shape);

// Searches for the shortest cycle, beginning with the seeds. `shape`: of the base trace. The families divide the pages
// by this shape and by the guides, which are shapes of the same units. No step is shorter than `least_ns` on average.
// Nothing if no seed can run.
std::optional<Plan> search_mix(const Shape& shape, const Mix& mix, std::span<const Shape> guides,
                               std::span<const Candidate> seeds, double least_ns);

}  // namespace stagehand::policy
