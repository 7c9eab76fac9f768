// The lower bound of the plans of this library, beside those of any policy (bounds.h).
#pragma once

#include "policy/plan.h"

namespace stagehand::policy {

// No plan makes a steady step shorter: a plan keeps whole pages of units from use to use, the same ones in each step.
// At least least_step_ns(), which holds for any policy. Larger where pages are coarse for the memory that turns over.
// Only bounds of cycles that use each unit once know pages.
double least_plan_ns(const Problem& problem);

}  // namespace stagehand::policy
