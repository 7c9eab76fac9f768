// Lower bounds that no plan and no other policy can beat. Plans are measured against them.
#pragma once

#include <cstdint>
#include <span>

#include "policy/plan.h"

namespace stagehand::policy {

// The least bytes that a step copies in the long run on `budget_pages` pages, whatever is kept or evicted.
uint64_t least_bytes(const Problem& problem);

// The shortest steady step: max(compute, least bytes / link). The bound also counts the bytes that cannot be copied
// while a compute holds its own unit and the memory is full.
double least_step_ns(const Problem& problem);

// The weaker bound, which is quoted for comparison: max(compute, (W - M) / link). W is the sum of all bytes used in a
// step that uses each unit once. If units are used more often, W counts each of those uses.
double simple_step_ns(const Problem& problem);

// delta* = min{ d >= 0 : d + sum of (s - d)+ <= M }, in bytes. Any policy moves this many bytes beyond W - M when units
// of sizes s are used in a cycle with less memory M than all of them need. 0 if all units fit. M must be at least the
// largest size.
uint64_t cycle_surplus(std::span<const uint64_t> sizes, uint64_t memory);

// The smallest budget that make_plan accepts, and the largest of the units that are held together there. The budget is
// the widest window of max_held consecutive uses over the cycle, in whole pages. It is larger only if addresses that
// are fixed for the whole step do not allow that. For example, an odd cycle of equal units of s pages, of which two are
// held, needs a little more than 2s pages.
Infeasible smallest_budget(const Problem& problem);

}  // namespace stagehand::policy
