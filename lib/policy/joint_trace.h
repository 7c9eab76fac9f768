// JointTrace: one trace that stands for all orders of a model's steps, so that one plan serves them all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/plan.h"

namespace stagehand::policy {

// The orders one after the other. If several uses are held at once, each comes twice, so that units that are held
// together in any of them are neighbours, also where a step of one order follows another one of it.
struct JointTrace {
    std::vector<Use> trace;
    uint32_t steps = 0;  // that the trace stands for
};
JointTrace join_orders(std::span<const std::vector<Use>> orders, uint32_t max_held);

}  // namespace stagehand::policy
