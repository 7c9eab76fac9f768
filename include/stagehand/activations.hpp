// Plans for what a training step saves, in C++: the call of activations.h with containers. stagehand.hpp includes this
// file.
#ifndef STAGEHAND_ACTIVATIONS_HPP
#define STAGEHAND_ACTIVATIONS_HPP

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "error.hpp"

namespace stagehand {
inline namespace abi0 {

// What becomes of each saved storage, and what that costs.
struct ActivationPlan {
    std::vector<std::uint32_t> fates;  // SH_FATE_*, one for each storage
    sh_activation_plan figures = sh_sized<sh_activation_plan>();
};

// `step` has the times, the link and the target. Its own storages and points are not used. `others` is the memory in
// use besides the storages, by time. The call reads the inputs of each activation. It keeps nothing.
inline ActivationPlan plan_activations(sh_training_step step, Span<const sh_activation> activations,
                                       Span<const sh_memory_point> others = {}) {
    step.activations = activations.data();
    step.activation_count = activations.size();
    step.others = others.data();
    step.other_count = others.size();
    ActivationPlan plan;
    plan.fates.resize(activations.size());
    check(sh_plan_activations(&step, plan.fates.data(), &plan.figures));
    return plan;
}

// What a choice of fates costs, and the memory in use over the step.
struct SimulatedActivations {
    sh_activation_plan figures = sh_sized<sh_activation_plan>();
    std::vector<sh_memory_point> memory;  // by time
};

// As plan_activations(). `fates` has one of SH_FATE_* for each activation. If it is empty, everything is kept.
inline SimulatedActivations simulate_activations(sh_training_step step, Span<const sh_activation> activations,
                                                 Span<const std::uint32_t> fates = {},
                                                 Span<const sh_memory_point> others = {}) {
    if (!fates.empty() && fates.size() != activations.size()) {
        throw Error(SH_ERROR_INVALID_ARGUMENT, "simulate_activations: " + std::to_string(fates.size()) +
                                                   " fates, but " + std::to_string(activations.size()) +
                                                   " activations");
    }
    step.activations = activations.data();
    step.activation_count = activations.size();
    step.others = others.data();
    step.other_count = others.size();
    SimulatedActivations simulated;
    simulated.memory.resize(8 * activations.size() + 2 * others.size(), sh_memory_point(SH_MEMORY_POINT_INIT));
    std::uint64_t count = 0;
    check(sh_simulate_activations(&step, fates.empty() ? nullptr : fates.data(), &simulated.figures,
                                  simulated.memory.data(), simulated.memory.size(), &count));
    if (count < simulated.memory.size()) simulated.memory.resize(std::size_t(count));
    return simulated;
}

}  // namespace abi0
}  // namespace stagehand

#endif
