// What no plan and no other policy can beat. Plans are measured against these.
#pragma once

#include <cstdint>
#include <span>

#include "policy/plan.h"

namespace stagehand::policy {

// The least bytes a step copies in the long run, whatever is kept or evicted, on `budget_pages` pages.
uint64_t least_bytes(const Problem& problem);

// The shortest steady step: max(compute, least bytes / link), sharpened by what cannot be copied while a
// compute holds its own unit and the memory is full.
double least_step_ns(const Problem& problem);

// The weaker one that is quoted for comparison: max(compute, (W - M) / link), W all bytes used in a step
// where each unit is used once, and where units are used more often, for each of those uses.
double simple_step_ns(const Problem& problem);

// delta* = min{ d >= 0 : d + sum of (s - d)+ <= M }, in bytes: what any policy moves beyond W - M when units
// of sizes s are used in a cycle with less memory M than all together. 0 if they fit. M must be at least the
// largest size.
uint64_t cycle_surplus(std::span<const uint64_t> sizes, uint64_t memory);

// The smallest budget that make_plan accepts, and the largest of the units that are held together there. It
// is the widest window of max_held consecutive uses over the cycle, in whole pages; more only where addresses
// that are fixed for the whole step do not allow that (an odd cycle of equal units of which two are held: s
// pages each need 2s and a bit).
Infeasible smallest_budget(const Problem& problem);

}  // namespace stagehand::policy
