// Planning of saved tensors.
#include <cmath>

#include "activations/plan.h"
#include "activations/timeline.h"
#include "api/guard.h"
#include "base/flags.h"

using namespace stagehand;
using namespace stagehand::api;

namespace {

constexpr uint64_t kDefaultInFlight = uint64_t(256) << 20;
constexpr uint64_t kDefaultLeast = 4096;
// Policy counts four events for each with 32 bits.
constexpr uint64_t kMostActivations = UINT32_MAX / 8;

Status impossible_step(const std::string& text) { return Status(SH_ERROR_INVALID_ARGUMENT, "step." + text); }

uint64_t or_else(uint64_t value, uint64_t otherwise) { return value ? value : otherwise; }

activations::LinkRate rate_of(uint64_t link, uint64_t others) {
    return {static_cast<double>(link) / 1e9, static_cast<double>(std::min(link, others)) / 1e9};
}

// Bytes and nanoseconds of policy that may be infinite.
uint64_t whole(double value) {
    return value < static_cast<double>(UINT64_MAX) ? static_cast<uint64_t>(std::ceil(value)) : UINT64_MAX;
}

// The step in the words of policy. The spans point into the vectors and into the caller's inputs.
struct PolicyStep {
    std::vector<activations::SavedStorage> storages;
    std::vector<activations::MemoryPoint> others;
    activations::TrainingStep step;
};

// The sums of bytes and of times stay exact up to this.
const std::string kMost = "2^52";

// The texts are made only for errors, because there may be a million activations.
Status impossible(const char* list, size_t index, const std::string& text) {
    return impossible_step(list + ("[" + std::to_string(index) + "]." + text));
}

// Whether a value and the sum with it are exact.
bool add_exactly(uint64_t value, uint64_t* sum) {
    return value <= activations::most_exact && (*sum += value) <= activations::most_exact;
}

Status read_storage(const sh_activation& from, size_t index, const sh_training_step& step,
                    activations::SavedStorage* out) {
    const auto bad = [&](const std::string& text) { return impossible("activations", index, text); };
    if (Status status = check_flags("flags", from.flags, {SH_KNOWN(SH_ACTIVATION_CHEAP)}); !status.ok())
        return bad(status.text());
    if (from.input_count && !from.inputs) return bad("inputs is NULL");
    if (from.input_count > step.activation_count) return bad("input_count is above activation_count");
    const uint64_t released = or_else(from.released_ns, from.produced_ns);
    if (from.produced_ns > released || released > from.first_use_ns || from.first_use_ns > from.last_use_ns)
        return bad("produced_ns, released_ns, first_use_ns and last_use_ns are not in this order");
    if (from.last_use_ns > step.end_ns) return bad("last_use_ns is after end_ns");
    const std::span<const uint32_t> inputs(from.inputs, from.input_count);
    for (const uint32_t input : inputs)
        if (input >= step.activation_count || input == index)
            return bad("inputs names activation " + std::to_string(input) + " of " +
                       std::to_string(step.activation_count));
    const bool cheap = (from.flags & SH_ACTIVATION_CHEAP) != 0;
    *out = {from.bytes,
            from.produced_ns,
            released,
            from.first_use_ns,
            from.last_use_ns,
            cheap,
            cheap ? from.recompute_ns : 0,
            inputs};
    return Status();
}

Status read_storages(const sh_training_step& from, PolicyStep* to) {
    if (from.activation_count > kMostActivations)
        return impossible_step("activation_count is above " + std::to_string(kMostActivations));
    std::vector<sh_activation> activations;
    SH_TRY(take_array(from.activations, from.activation_count, {"step.activations", "step.activation_count"},
                      &activations));
    to->storages.resize(activations.size());
    uint64_t bytes = 0, times = from.end_ns, inputs = 0;
    for (size_t i = 0; i < activations.size(); i++) {
        const auto bad = [&](const std::string& text) { return impossible("activations", i, text); };
        // Before the inputs are read: the lists of a million activations may be one and the same.
        if (activations[i].input_count > activations::most_inputs ||
            (inputs += activations[i].input_count) > activations::most_inputs)
            return bad("input_count: the activations have more than " + std::to_string(activations::most_inputs) +
                       " inputs together");
        SH_TRY(read_storage(activations[i], i, from, &to->storages[i]));
        if (i && activations[i].produced_ns < activations[i - 1].produced_ns)
            return bad("produced_ns: activations are not in the order of produced_ns");
        if (!add_exactly(to->storages[i].bytes, &bytes)) return bad("bytes: the activations have above 2^52 together");
        if (!add_exactly(to->storages[i].recompute_ns, &times))
            return bad("recompute_ns: end_ns and all recomputes are above 2^52 together");
    }
    if (const auto storage = activations::computed_from_itself(to->storages))
        return impossible("activations", *storage,
                          "inputs: the activation is computed from itself, by way of its inputs");
    return Status();
}

Status read_others(const sh_training_step& from, PolicyStep* to) {
    if (from.other_count > kMostActivations)
        return impossible_step("other_count is above " + std::to_string(kMostActivations));
    std::vector<sh_memory_point> points;
    SH_TRY(take_array(from.others, from.other_count, {"step.others", "step.other_count"}, &points));
    for (size_t i = 0; i < points.size(); i++) {
        if (i && points[i].ns < points[i - 1].ns) return impossible("others", i, "ns: others are not by time");
        if (points[i].ns > from.end_ns) return impossible("others", i, "ns is after end_ns");
        if (points[i].bytes > activations::most_exact) return impossible("others", i, "bytes is above 2^52");
        to->others.push_back({points[i].ns, points[i].bytes});
    }
    return Status();
}

Status read_step(const sh_training_step& from, PolicyStep* to) {
    if (from.end_ns > activations::most_exact) return impossible_step("end_ns is above 2^52");
    if (from.forward_end_ns > from.end_ns) return impossible_step("forward_end_ns is after end_ns");
    if (from.copy_latency_ns > activations::most_exact) return impossible_step("copy_latency_ns is above 2^52");
    SH_TRY(read_storages(from, to));
    SH_TRY(read_others(from, to));
    activations::TrainingStep& step = to->step;
    step.storages = to->storages;
    step.others = to->others;
    step.forward_end_ns = from.forward_end_ns;
    step.end_ns = from.end_ns;
    step.to_host = rate_of(from.to_host_bytes_per_second, from.other_to_host_bytes_per_second);
    step.to_device = rate_of(from.to_device_bytes_per_second, from.other_to_device_bytes_per_second);
    step.copy_latency_ns = from.copy_latency_ns;
    step.in_flight_bytes = or_else(from.to_host_bytes, kDefaultInFlight);
    step.ahead_bytes = or_else(from.to_device_bytes, kDefaultInFlight);
    step.least_spill_bytes = or_else(from.least_bytes, kDefaultLeast);
    return Status();
}

Status read_fates(const uint32_t* fates, const PolicyStep& step, std::vector<activations::Fate>* out) {
    out->assign(step.storages.size(), activations::Fate::keep);
    for (uint32_t i = 0; fates && i < out->size(); i++) {
        const auto bad = [&](const char* text) {
            return Status(SH_ERROR_INVALID_ARGUMENT, "fates[" + std::to_string(i) + "] " + text);
        };
        if (fates[i] > SH_FATE_RECOMPUTE) return bad("is not one of SH_FATE_*");
        (*out)[i] = static_cast<activations::Fate>(fates[i]);
        if (activations::possible(step.step, step.storages[i], (*out)[i])) continue;
        return fates[i] == SH_FATE_SPILL
                   ? bad("is SH_FATE_SPILL, but the activation has fewer than least_bytes, or no link is left")
                   : bad("is SH_FATE_RECOMPUTE, but the activation is not SH_ACTIVATION_CHEAP");
    }
    return Status();
}

void describe_cost(const activations::TrainingStep& step, const activations::ActivationCost& cost,
                   uint64_t plain_peak_bytes, sh_activation_plan* out) {
    uint64_t total = 0;
    for (const activations::SavedStorage& storage : step.storages) total += storage.bytes;
    out->step_ns = whole(cost.step_ns);
    out->peak_bytes = cost.peak_bytes;
    out->plain_peak_bytes = plain_peak_bytes;
    out->recompute_ns = whole(cost.recompute_ns);
    out->spilled_bytes = cost.spilled_bytes;
    out->recomputed_bytes = cost.recomputed_bytes;
    out->kept_bytes = total - cost.spilled_bytes - cost.recomputed_bytes;
    out->least_step_ns = out->least_peak_bytes = 0;
}

void describe(const sh_training_step& wanted, const activations::TrainingStep& step,
              const activations::ActivationPlan& plan, sh_activation_plan* out) {
    describe_cost(step, plan.cost, plan.plain_peak_bytes, out);
    if (wanted.target_peak_bytes) {
        out->meets_target = plan.cost.peak_bytes <= wanted.target_peak_bytes;
        out->least_step_ns = static_cast<uint64_t>(std::min(plan.bound, 1.8e19));
        if (std::isinf(plan.bound)) out->least_step_ns = UINT64_MAX;
    } else {
        out->meets_target = out->step_ns <= wanted.target_step_ns;
        out->least_peak_bytes = static_cast<uint64_t>(plan.bound);
    }
}

Status plan_activations(const sh_training_step& wanted, uint32_t* out_fates, sh_activation_plan* out_plan) {
    if (!wanted.target_peak_bytes == !wanted.target_step_ns)
        return impossible_step("target_peak_bytes and target_step_ns: exactly one of them is given");
    PolicyStep read;
    SH_TRY(read_step(wanted, &read));
    if (wanted.activation_count && !out_fates) return Status(SH_ERROR_INVALID_ARGUMENT, "out_fates is NULL");
    if (out_plan) SH_TRY(check_struct(out_plan, "out_plan"));
    const auto plan = wanted.target_peak_bytes
                          ? activations::fastest_activations(read.step, wanted.target_peak_bytes)
                          : activations::leanest_activations(read.step, static_cast<double>(wanted.target_step_ns));
    if (!plan) return Status(SH_ERROR_INTERNAL, "the planner refuses a step that was checked");
    Output<sh_activation_plan> out(out_plan);
    describe(wanted, read.step, *plan, out.get());
    for (size_t i = 0; i < plan->fates.size(); i++) out_fates[i] = static_cast<uint32_t>(plan->fates[i]);
    out.give();
    return Status();
}

Status simulate_activations(const sh_training_step& wanted, const uint32_t* fates, sh_activation_plan* out_plan,
                            std::span<sh_memory_point* const> to, uint64_t* out_count) {
    if (wanted.target_step_ns) return impossible_step("target_step_ns: a simulation has no target for the time");
    PolicyStep read;
    SH_TRY(read_step(wanted, &read));
    std::vector<activations::Fate> chosen;
    SH_TRY(read_fates(fates, read, &chosen));
    const uint64_t target = or_else(wanted.target_peak_bytes, UINT64_MAX);
    const auto simulated = activations::simulate_activations(read.step, chosen, target);
    if (!simulated) return Status(SH_ERROR_INTERNAL, "the simulation refuses a step that was checked");
    for (size_t i = 0; i < std::min(to.size(), simulated->memory.size()); i++) {
        to[i]->ns = simulated->memory[i].ns;
        to[i]->bytes = simulated->memory[i].bytes;
    }
    if (out_count) *out_count = simulated->memory.size();
    if (out_plan) {
        describe_cost(read.step, simulated->cost, simulated->plain_peak_bytes, out_plan);
        out_plan->meets_target = simulated->cost.peak_bytes <= target;
    }
    return Status();
}

}  // namespace

extern "C" {

sh_status sh_plan_activations(const sh_training_step* step, uint32_t* out_fates, sh_activation_plan* out_plan) {
    return guarded([&] {
        SH_TRY(check_struct(step, "step"));
        sh_training_step wanted;
        read_struct(step, &wanted);
        return plan_activations(wanted, out_fates, out_plan);
    });
}

sh_status sh_simulate_activations(const sh_training_step* step, const uint32_t* fates, sh_activation_plan* out_plan,
                                  sh_memory_point* out_points, uint64_t capacity, uint64_t* out_count) {
    return guarded([&] {
        SH_TRY(check_struct(step, "step"));
        sh_training_step wanted;
        read_struct(step, &wanted);
        if (out_plan) SH_TRY(check_struct(out_plan, "out_plan"));
        OutputArray<sh_memory_point> points;
        SH_TRY(points.open(out_points, capacity, {"out_points", "capacity"}));
        Output<sh_activation_plan> plan(out_plan);
        uint64_t count = 0;
        SH_TRY(simulate_activations(wanted, fates, plan.get(), points.get(), &count));
        points.give(std::min(capacity, count));
        plan.give();
        if (out_count) *out_count = count;
        return Status();
    });
}

}  // extern "C"
