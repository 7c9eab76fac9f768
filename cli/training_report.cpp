#include "training_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "json_output.h"
#include "model/quantity.h"
#include "table.h"
#include "units.h"

namespace stagehand::cli {

namespace {

double in_ms(std::uint64_t ns) { return static_cast<double>(ns) / 1e6; }
std::string size_text(std::uint64_t bytes) { return model::format_bytes(bytes); }

void add_row(Table& table, const TrainingReport& report, const TrainingArm& arm) {
    const auto of = [](std::uint64_t part, std::uint64_t whole) {
        return ratio_text(static_cast<double>(part), static_cast<double>(whole));
    };
    const std::uint64_t plain_ns = report.plain.memory.end_ns;
    table.add({arm.memory.name, time_text(in_ms(arm.memory.end_ns)), of(arm.memory.end_ns, plain_ns),
               arm.bound_ns == UINT64_MAX ? "none" : of(arm.bound_ns, plain_ns), size_text(arm.memory.peak_bytes()),
               of(arm.memory.peak_bytes(), report.plain.memory.peak_bytes()), size_text(arm.kept_bytes),
               size_text(arm.spilled_bytes), size_text(arm.recomputed_bytes)});
}

std::string target_text(const TrainingReport& report) {
    return report.target_peak_bytes != 0 ? fmt::format("a peak of {}", size_text(report.target_peak_bytes))
                                         : fmt::format("a step of {}", time_text(in_ms(report.target_step_ns)));
}

Json arm_json(const TrainingArm& arm) {
    Json points = Json::array();
    for (const sh_memory_point& point : arm.memory.points) points.push_back({point.ns, point.bytes});
    return {{"step_ms", in_ms(arm.memory.end_ns)},
            {"bound_ms", arm.bound_ns == UINT64_MAX ? Json() : Json(in_ms(arm.bound_ns))},
            {"peak_bytes", arm.memory.peak_bytes()},
            {"kept_bytes", arm.kept_bytes},
            {"spilled_bytes", arm.spilled_bytes},
            {"recomputed_bytes", arm.recomputed_bytes},
            {"memory", std::move(points)}};
}

}  // namespace

std::string json_text(const TrainingReport& report) {
    const training::Shape& shape = report.shape;
    Json json = {
        {"model", report.model},
        {"layers", shape.layers},
        {"hidden_size", shape.hidden},
        {"heads", shape.heads},
        {"kv_heads", shape.kv_heads},
        {"intermediate_size", shape.intermediate},
        {"gated_mlp", shape.gated},
        {"vocab_size", shape.vocabulary},
        {"seq_len", shape.sequence},
        {"batch_size", shape.batch},
        {"dtype", report.dtype},
        {"weight_bytes", shape.weights() * shape.element_bytes},
        {"flops", report.rates.operations_per_second},
        {"memory_bytes_per_second", report.rates.memory_bytes_per_second},
        {"device", report.device.empty() ? Json() : Json(report.device)},
        {"to_host_bytes_per_second", report.to_host_bytes_per_second},
        {"to_device_bytes_per_second", report.to_device_bytes_per_second},
        {"target_peak_bytes", report.target_peak_bytes},
        {"target_step_ms", in_ms(report.target_step_ns)},
        {"meets_target", report.meets_target},
        {"least_peak_bytes", report.least_peak_bytes},
        {"forward_ms", in_ms(report.plain.memory.forward_end_ns)},
        {"plain", arm_json(report.plain)},
        {"checkpointed", arm_json(report.checkpointed)},
        {"planned", arm_json(report.planned)},
    };
    return to_text(json);
}

std::string table_text(const TrainingReport& report, const Terminal& terminal) {
    Table table = {{"step", Align::left},   {"time", Align::right},    {"of plain", Align::right},
                   {"bound", Align::right}, {"peak", Align::right},    {"of plain", Align::right},
                   {"kept", Align::right},  {"spilled", Align::right}, {"computed again", Align::right}};
    add_row(table, report, report.plain);
    add_row(table, report, report.checkpointed);
    add_row(table, report, report.planned);
    std::string text = report.model + "\n\n" + table.text(terminal) + "\n";
    text += legible(terminal, memory_text({report.plain.memory, report.checkpointed.memory, report.planned.memory},
                                          terminal.columns)) +
            "\n";

    Facts facts;
    facts.add("weights", size_text(report.shape.weights() * report.shape.element_bytes),
              "and as many bytes of gradients; an optimizer's state is not counted");
    facts.add("arithmetic", fmt::format("{:.0f} TFLOPS", report.rates.operations_per_second / 1e12),
              fmt::format("the forward takes {}", time_text(in_ms(report.plain.memory.forward_end_ns))));
    facts.add("memory", model::format_rate(report.rates.memory_bytes_per_second),
              report.memory_bandwidth_given ? "" : "assumed; --memory-bandwidth gives it");
    facts.add(
        "link",
        report.to_host_bytes_per_second == 0
            ? "none"
            : model::format_rate(static_cast<double>(report.to_host_bytes_per_second)) + " to host",
        report.device.empty()
            ? "given, both ways"
            : fmt::format("{} to device, measured on {}",
                          model::format_rate(static_cast<double>(report.to_device_bytes_per_second)), report.device));
    facts.add("target", target_text(report), report.meets_target ? "met" : "not met: this is the nearest plan",
              report.meets_target ? Ink::plain : Ink::bad);
    if (report.least_peak_bytes != 0)
        facts.add("lowest peak", size_text(report.least_peak_bytes), "no choice has a lower one in this time");
    return text + facts.text(terminal) +
           "\nNo plan beats the bound at the peak beside it. A plan computes norms, activation functions and products "
           "with "
           "gates again,\nand checkpoints compute products of matrices again.\n";
}

}  // namespace stagehand::cli
