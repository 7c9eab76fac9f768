// plan_activations() of activations.hpp: containers reach the planner, its answer comes back, and mistakes throw.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stagehand/stagehand.hpp>
#include <string>
#include <vector>

#include "owners.hpp"

namespace {

namespace sh = stagehand;

constexpr std::uint64_t kSecond = 1000000000, kMegabyte = 1000000;
constexpr std::uint64_t kLayers = 4;

// Each layer takes a second, forward and then backward. It saves 100 MB and, from it, 50 MB that are cheap.
struct Recorded {
    Recorded() : inputs(kLayers) {
        for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
            sh_activation saved = SH_ACTIVATION_INIT;
            saved.bytes = 100 * kMegabyte;
            saved.produced_ns = layer * kSecond;
            saved.first_use_ns = (2 * kLayers - 1 - layer) * kSecond;
            saved.last_use_ns = saved.first_use_ns + kSecond;
            inputs[layer] = static_cast<std::uint32_t>(activations.size());
            activations.push_back(saved);
            saved.bytes = 50 * kMegabyte;
            saved.flags = SH_ACTIVATION_CHEAP;
            saved.recompute_ns = kSecond / 100;
            saved.inputs = &inputs[layer];
            saved.input_count = 1;
            activations.push_back(saved);
        }
        step.forward_end_ns = kLayers * kSecond;
        step.end_ns = 2 * kLayers * kSecond;
        step.to_host_bytes_per_second = step.to_device_bytes_per_second = 100 * kMegabyte;
        step.target_peak_bytes = 350 * kMegabyte;
    }
    Recorded(const Recorded&) = delete;
    Recorded& operator=(const Recorded&) = delete;

    std::vector<std::uint32_t> inputs;
    std::vector<sh_activation> activations;
    sh_training_step step = SH_TRAINING_STEP_INIT;
};

void a_plan_has_a_fate_for_each_storage() {
    const Recorded recorded;
    const sh::ActivationPlan plan = sh::plan_activations(recorded.step, recorded.activations);
    CHECK(plan.fates.size() == recorded.activations.size() && plan.figures.meets_target == 1);
    std::uint64_t bytes[3] = {};
    for (std::size_t i = 0; i < plan.fates.size(); ++i) {
        CHECK(plan.fates[i] <= SH_FATE_RECOMPUTE);
        if (plan.fates[i] <= SH_FATE_RECOMPUTE) bytes[plan.fates[i]] += recorded.activations[i].bytes;
    }
    CHECK(bytes[SH_FATE_KEEP] == plan.figures.kept_bytes && bytes[SH_FATE_SPILL] == plan.figures.spilled_bytes);
    CHECK(bytes[SH_FATE_RECOMPUTE] == plan.figures.recomputed_bytes && bytes[SH_FATE_SPILL] > 0);
    CHECK(plan.figures.peak_bytes <= 350 * kMegabyte && plan.figures.plain_peak_bytes == 600 * kMegabyte);
    CHECK(plan.figures.least_step_ns <= plan.figures.step_ns);
}

void other_memory_counts() {
    const Recorded recorded;
    sh_training_step step = recorded.step;
    sh_memory_point others[2] = {SH_MEMORY_POINT_INIT, SH_MEMORY_POINT_INIT};
    others[0].bytes = 300 * kMegabyte;
    others[1].ns = step.forward_end_ns;
    step.target_peak_bytes = 1000 * kMegabyte;
    CHECK(sh::plan_activations(step, recorded.activations, others).figures.plain_peak_bytes == 900 * kMegabyte);
    // What the step points to is not used.
    step.other_count = step.activation_count = ~std::uint64_t(0);
    CHECK(sh::plan_activations(step, recorded.activations).figures.plain_peak_bytes == 600 * kMegabyte);
    const sh::ActivationPlan none = sh::plan_activations(step, {});
    CHECK(none.fates.empty() && none.figures.peak_bytes == 0);
}

void a_choice_is_simulated() {
    const Recorded recorded;
    const sh::ActivationPlan plan = sh::plan_activations(recorded.step, recorded.activations);
    const sh::SimulatedActivations simulated =
        sh::simulate_activations(recorded.step, recorded.activations, plan.fates);
    CHECK(simulated.figures.step_ns == plan.figures.step_ns && simulated.figures.meets_target == 1);
    std::uint64_t highest = 0;
    for (const sh_memory_point& point : simulated.memory) highest = point.bytes > highest ? point.bytes : highest;
    CHECK(highest == plan.figures.peak_bytes && simulated.memory.back().bytes == 0);
    sh_training_step step = recorded.step;
    step.target_peak_bytes = 0;
    const sh_memory_point other = {sizeof(sh_memory_point), 0, 0, 7};
    const sh::SimulatedActivations kept = sh::simulate_activations(step, recorded.activations, {}, {&other, 1});
    CHECK(kept.figures.peak_bytes == 600 * kMegabyte + 7 && kept.memory.back().bytes == 7);
    const std::vector<std::uint32_t> few(3);
    CHECK(status_of([&] { sh::simulate_activations(step, recorded.activations, few); }) == SH_ERROR_INVALID_ARGUMENT);
    CHECK(sh::simulate_activations(step, {}).memory.empty());
}

void impossible_steps_throw() {
    Recorded recorded;
    recorded.inputs[2] = 99;
    try {
        sh::plan_activations(recorded.step, recorded.activations);
        CHECK(!"a storage of which there is none");
    } catch (const sh::Error& error) {
        CHECK(error.status() == SH_ERROR_INVALID_ARGUMENT);
        CHECK(std::strstr(error.what(), "activations[5].inputs names activation 99 of 8") != nullptr);
    }
    recorded.step.target_step_ns = 1;
    CHECK(status_of([&] { sh::plan_activations(recorded.step, {}); }) == SH_ERROR_INVALID_ARGUMENT);
}

}  // namespace

int main() {
    try {
        a_plan_has_a_fate_for_each_storage();
        other_memory_counts();
        a_choice_is_simulated();
        impossible_steps_throw();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "unexpected: %s\n", error.what());
        return 1;
    }
    return failed_checks != 0;
}
