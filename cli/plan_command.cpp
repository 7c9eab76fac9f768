// `stagehand plan`: shows the plan for a budget, without streaming.
#include <algorithm>
#include <cstdio>
#include <optional>

#include <fmt/format.h>

#include "block_table.h"
#include "curve.h"
#include "expert_replay.h"
#include "expert_trace.h"
#include "model/text.h"
#include "model_files.h"
#include "options.h"
#include "output_files.h"
#include "plan_report.h"
#include "planner.h"
#include "terminal.h"
#include "units.h"

namespace stagehand::cli {

namespace {

void add_curve(const Planner& planner, bool quiet, const BlockTable& table, PlanReport& report) {
    Curve& curve = report.curve;
    fill_curve(planner, quiet, report.plan, report.target.budget_bytes, curve);
    curve.title = report.model;
    curve.subtitle = fmt::format(
        "{} · {} · {} · link {} · compute {}", to_string(report.order), description(table), report.target.device,
        model::format_rate(static_cast<double>(report.plan.link_bytes_per_second)), time_text(report.compute_ms));
    curve.compute_ms = report.compute_ms;
}

// Without the time of their steps with the plan for all. No other planner may be open: they would share the memory.
std::vector<KindReport> plan_each_alone(const PlanTarget& target, const BlockTable& table, const PlanOptions& options) {
    double steps = 0;
    for (const KindOption& kind : options.kinds) steps += kind.steps;
    std::vector<KindReport> reports;
    for (const KindOption& kind : options.kinds) {
        PlanOptions alone = options;
        alone.kinds.clear();
        alone.compute_ms = kind.compute_ms;
        const sh_plan_info plan = Planner(target, table, alone).plan();
        reports.push_back({kind.name, kind.steps / steps, kind.compute_ms, 0, static_cast<double>(plan.bound_ns) / 1e6,
                           static_cast<double>(plan.step_ns) / 1e6});
    }
    return reports;
}

}  // namespace

int plan_command(const PlanOptions& options) {
    if (options.is_training) return training_command(options);
    model::Model model = read_model(options);
    check_outputs({{"--svg ", options.svg}}, inputs_of(options.model, model));
    PlanReport report;
    report.model = model_name(options.model);
    report.order = options.order;
    report.compute_ms = options.compute_ms;
    report.target = find_target(options, budget_bytes(options, model));
    const BlockTable table = group(std::move(model), options, report.target.budget_bytes);

    // Kinds of step are run in the simulation, which has no contents that could be packed.
    std::optional<ModelFiles> packed;
    if (table.is_packed() && options.kinds.empty()) {
        packed.emplace(table.model);
        measure_unpacking(options, table, *packed, report.target);
        if (report.target.unpack_bytes_per_second == 0)
            packed.reset();
        else
            report.plain = Planner(report.target, table, options).plan();
    }
    if (!options.experts.empty()) {
        report.experts.emplace(ExpertReport{read_experts(options, report.target.budget_bytes), {}, {}});
        const ExpertTable& experts = report.experts->table;
        report.experts->planned =
            plan_experts(report.target, options, experts, read_expert_trace(options.experts, experts));
    }
    report.kinds = plan_each_alone(report.target, table, options);
    Planner planner(report.target, table, options, packed ? &*packed : nullptr);
    report.page_bytes = planner.page_bytes();
    if (!options.kinds.empty()) {
        const std::vector<double> step_ms = planner.plan_kinds();
        for (std::size_t i = 0; i < step_ms.size(); ++i) report.kinds[i].step_ms = step_ms[i];
    }
    report.plan = planner.plan();
    if (table.is_packed() && options.kinds.empty() && !report.plain) report.plain = report.plan;
    report.compute_ms = options.kinds.empty() ? options.compute_ms : static_cast<double>(report.plan.compute_ns) / 1e6;
    report.parts = planner.block_parts();
    report.smallest_budget_block = planner.block_name(report.plan.smallest_budget_block);
    if (options.curve || !options.svg.empty()) add_curve(planner, options.json, table, report);
    if (!options.svg.empty()) write_file({"--svg ", options.svg}, curve_picture(report.curve));
    print(options.json ? json_text(report, table) : table_text(report, table, options.all_blocks, terminal_of(stdout)));
    finish_output();
    return 0;
}

}  // namespace stagehand::cli
