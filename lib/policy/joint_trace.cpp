#include "policy/joint_trace.h"

namespace stagehand::policy {

JointTrace join_orders(std::span<const std::vector<Use>> orders, uint32_t max_held) {
    const uint32_t times = max_held > 1 && orders.size() > 1 ? 2 : 1;
    JointTrace joint;
    for (const std::vector<Use>& order : orders)
        for (uint32_t k = 0; k < times; k++) joint.trace.insert(joint.trace.end(), order.begin(), order.end());
    joint.steps = times * static_cast<uint32_t>(orders.size());
    return joint;
}

}  // namespace stagehand::policy
