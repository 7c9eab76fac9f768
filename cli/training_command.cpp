// `stagehand plan --training`: what keeping, spilling and computing again give a training step, from sizes alone.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "block_table.h"
#include "copy_speed.h"
#include "library.h"
#include "model_files.h"
#include "options.h"
#include "output_files.h"
#include "terminal.h"
#include "training/model_shape.h"
#include "training/recorded_step.h"
#include "training_report.h"
#include "units.h"

namespace stagehand::cli {

namespace {

constexpr double default_memory_bandwidth = 1e12;
constexpr std::uint64_t copy_latency_ns = 10'000;  // to begin a copy: about that of a GPU's copy engine

// Refuses sizes beyond those that the planner counts exactly, or lays out in a second.
void check_size(const training::Shape& shape) {
    constexpr std::uint64_t most_layers = 10'000;
    constexpr double most_bytes = 0x1p50;
    if (shape.layers > most_layers) {
        throw CommandError(ExitCode::usage,
                           fmt::format("--layers: {} are too many; the most is {}", shape.layers, most_layers));
    }
    double saved = 0;
    for (const training::SavedTensor& tensor : training::layer_of(shape).saved) saved += tensor.width;
    const double layers = static_cast<double>(shape.layers);
    const double width = static_cast<double>(shape.hidden + shape.intermediate + shape.heads * shape.head_width);
    const double weights = (layers * 4 * width + 2 * static_cast<double>(shape.vocabulary)) * width;
    const double tokens = static_cast<double>(shape.tokens());
    const double held = 4 * tokens * (saved + static_cast<double>(shape.vocabulary));
    if ((layers * saved * tokens + held + 2 * weights) * static_cast<double>(shape.element_bytes) > most_bytes) {
        throw CommandError(ExitCode::usage,
                           "the sizes of --hidden-size, --seq-len and so on make a step of above a "
                           "petabyte, for which there is no plan");
    }
}

training::Shape shape_from(const PlanOptions& options) {
    const TrainingOptions& given = options.training;
    training::Shape shape;
    if (!options.model.empty()) {
        const model::Model model = read_model(options);
        check_outputs({{"--svg ", options.svg}}, inputs_of(options.model, model));
        shape = training::shape_of(model, given.heads);
    } else {
        shape.layers = given.layers;
        shape.hidden = given.hidden;
        shape.heads = given.heads != 0 ? given.heads : std::max<std::uint64_t>(1, given.hidden / 128);
        shape.kv_heads = given.kv_heads != 0 ? given.kv_heads : shape.heads;
        if (given.hidden % shape.heads != 0) {
            throw CommandError(ExitCode::usage, fmt::format("--heads: {} heads do not divide --hidden-size {}",
                                                            shape.heads, given.hidden));
        }
        if (shape.kv_heads > shape.heads) {
            throw CommandError(ExitCode::usage, fmt::format("--kv-heads: {} are more than the {} heads of the queries",
                                                            shape.kv_heads, shape.heads));
        }
        shape.head_width = given.hidden / shape.heads;
        shape.intermediate = given.intermediate != 0 ? given.intermediate : 4 * given.hidden;
        shape.gated = given.gated;
        shape.vocabulary = given.vocabulary;
    }
    shape.sequence = given.sequence;
    shape.batch = given.batch;
    shape.element_bytes = given.element_bytes;
    check_size(shape);
    return shape;
}

std::string shape_text(const PlanOptions& options, const training::Shape& shape) {
    return fmt::format("{}{} of width {}, {} and {} of keys, MLP of width {}{}, {} of {} tokens, {}",
                       options.model.empty() ? "" : model_name(options.model) + ": ", counted(shape.layers, "layer"),
                       shape.hidden, counted(shape.heads, "head"), shape.kv_heads, shape.intermediate,
                       shape.gated ? " with a gate" : "", counted(shape.batch, "sequence"), shape.sequence,
                       options.training.dtype);
}

void find_link(const PlanOptions& options, TrainingReport& report) {
    report.to_host_bytes_per_second = report.to_device_bytes_per_second = options.bandwidth;
    if (options.bandwidth != 0) return;
    DeviceRequest request;
    request.name = options.device;
    request.backend_options = options.backend_options;
    const Device device = open_device(request);
    report.device = device_capabilities(device.get()).name;
    const std::optional<CopySpeed> speed = measure_copy_speed(device.get());
    if (!speed) {
        throw CommandError(ExitCode::device, fmt::format("device {}: its memory is too small to measure the link; give "
                                                         "its speed with --bandwidth",
                                                         report.device));
    }
    report.to_host_bytes_per_second = static_cast<std::uint64_t>(speed->to_host_bytes_per_second);
    report.to_device_bytes_per_second = static_cast<std::uint64_t>(speed->to_device_bytes_per_second);
}

// The step with the link of the report. Copies in flight are not bounded, because a plan counts their memory.
sh_training_step linked(const training::RecordedStep& recorded, const TrainingReport& report) {
    sh_training_step step = recorded.step();
    step.to_host_bytes_per_second = report.to_host_bytes_per_second;
    step.to_device_bytes_per_second = report.to_device_bytes_per_second;
    step.copy_latency_ns = copy_latency_ns;
    step.to_host_bytes = step.to_device_bytes = UINT64_MAX;
    return step;
}

// Simulates the fates (all kept if there are none).
TrainingArm simulate(const char* name, const sh_training_step& step, const std::vector<std::uint32_t>& fates) {
    TrainingArm arm;
    arm.memory.name = name;
    arm.memory.points.assign(8 * step.activation_count + 2 * step.other_count, sh_memory_point(SH_MEMORY_POINT_INIT));
    auto plan = sh_sized<sh_activation_plan>();
    std::uint64_t count = 0;
    check(sh_simulate_activations(&step, fates.empty() ? nullptr : fates.data(), &plan, arm.memory.points.data(),
                                  arm.memory.points.size(), &count),
          "the training step");
    arm.memory.points.resize(count);
    arm.memory.forward_end_ns = step.forward_end_ns;
    arm.memory.end_ns = plan.step_ns;
    arm.kept_bytes = plan.kept_bytes;
    arm.spilled_bytes = plan.spilled_bytes;
    arm.recomputed_bytes = plan.recomputed_bytes;
    return arm;
}

std::uint64_t bound_ns(sh_training_step step, std::uint64_t peak_bytes) {
    std::vector<std::uint32_t> fates(step.activation_count);
    auto plan = sh_sized<sh_activation_plan>();
    step.target_step_ns = 0;
    step.target_peak_bytes = peak_bytes;
    check(sh_plan_activations(&step, fates.data(), &plan), "the training step");
    return plan.least_step_ns;
}

void make_plan(const training::RecordedStep& recorded, TrainingReport& report) {
    sh_training_step step = linked(recorded, report);
    step.target_peak_bytes = report.target_peak_bytes;
    step.target_step_ns = report.target_step_ns;
    std::vector<std::uint32_t> fates(step.activation_count);
    auto plan = sh_sized<sh_activation_plan>();
    check(sh_plan_activations(&step, fates.data(), &plan), "the training step");
    report.meets_target = plan.meets_target != 0;
    report.least_peak_bytes = plan.least_peak_bytes;
    // The waits of the plan are those under its own peak.
    step.target_step_ns = 0;
    step.target_peak_bytes = report.target_peak_bytes != 0 ? report.target_peak_bytes : plan.peak_bytes;
    report.planned = simulate("planned", step, fates);
    report.planned.bound_ns = bound_ns(step, report.planned.memory.peak_bytes());
}

}  // namespace

int training_command(const PlanOptions& options) {
    TrainingReport report;
    report.shape = shape_from(options);
    report.model = shape_text(options, report.shape);
    report.dtype = options.training.dtype;
    report.memory_bandwidth_given = options.training.memory_bandwidth != 0;
    report.rates.memory_bytes_per_second = report.memory_bandwidth_given
                                               ? static_cast<double>(options.training.memory_bandwidth)
                                               : default_memory_bandwidth;
    report.rates.operations_per_second =
        options.training.flops != 0
            ? options.training.flops
            : training::rate_for(report.shape, report.rates.memory_bytes_per_second, options.training.step_ms * 1e6);
    if (report.rates.operations_per_second <= 0) {
        throw CommandError(ExitCode::usage,
                           fmt::format("--step-ms: {} ms are less than the device's memory needs to move the bytes of "
                                       "such a step; give a higher --memory-bandwidth",
                                       options.training.step_ms));
    }
    find_link(options, report);
    const training::RecordedStep plain = training::plain_step(report.shape, report.rates);
    const training::RecordedStep checkpointed = training::checkpointed_step(report.shape, report.rates);
    const sh_training_step step = linked(plain, report);
    report.plain = simulate("plain", step, {});
    report.plain.bound_ns = step.end_ns;
    report.checkpointed = simulate("checkpointed", linked(checkpointed, report), {});
    report.checkpointed.bound_ns = bound_ns(step, report.checkpointed.memory.peak_bytes());
    // Nothing that the backward makes anew was kept.
    report.checkpointed.kept_bytes =
        report.shape.layers * report.shape.hidden * report.shape.tokens() * report.shape.element_bytes;
    report.checkpointed.recomputed_bytes = report.plain.kept_bytes - report.checkpointed.kept_bytes;
    if (options.training.slowdown != 0) {
        report.target_step_ns =
            static_cast<std::uint64_t>(std::llround(static_cast<double>(step.end_ns) * options.training.slowdown));
    } else {
        report.target_peak_bytes =
            options.training.peak_bytes != 0 ? options.training.peak_bytes : report.checkpointed.memory.peak_bytes();
    }
    make_plan(plain, report);
    if (!options.svg.empty()) {
        write_file({"--svg ", options.svg},
                   memory_picture({report.plain.memory, report.checkpointed.memory, report.planned.memory},
                                  "Memory over a training step", report.model, report.target_peak_bytes));
    }
    print(options.json ? json_text(report) : table_text(report, terminal_of(stdout)));
    finish_output();
    return 0;
}

}  // namespace stagehand::cli
