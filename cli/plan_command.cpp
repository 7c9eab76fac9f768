// `stagehand plan`: shows the plan for a budget, without streaming.
#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "block_table.h"
#include "curve.h"
#include "model/text.h"
#include "options.h"
#include "plan_report.h"
#include "planner.h"
#include "progress.h"
#include "svg.h"
#include "terminal.h"
#include "units.h"

namespace stagehand::cli {

namespace {

// `budget` is the budget that was asked for; the plan itself uses no more than the model needs.
CurvePoint point_of(std::uint64_t budget, const sh_plan_info& info) {
    return {budget,
            info.bytes_per_step,
            info.resident_bytes,
            info.ring_bytes,
            static_cast<double>(info.step_ns) / 1e6,
            static_cast<double>(info.bound_ns) / 1e6,
            static_cast<double>(info.plan_bound_ns) / 1e6};
}

void add_curve(const Planner& planner, bool quiet, const BlockTable& table, PlanReport& report) {
    const sh_plan_info& plan = report.plan;
    Curve& curve = report.curve;
    curve.title = report.model;
    curve.subtitle = fmt::format(
        "{} · {} · {} · link {} · compute {}", to_string(report.order), description(table), report.target.device,
        model::format_rate(static_cast<double>(plan.link_bytes_per_second)), time_text(report.compute_ms));
    curve.model_bytes = plan.model_bytes;
    curve.smallest_budget_bytes = plan.smallest_budget_bytes;
    curve.compute_ms = report.compute_ms;
    curve.copy_all_ms = static_cast<double>(plan.model_bytes) * 1e3 /
                        static_cast<double>(std::max<std::uint64_t>(plan.link_bytes_per_second, 1));
    curve.chosen = point_of(report.target.budget_bytes, plan);

    const std::vector<std::uint64_t> budgets =
        curve_budgets(plan.smallest_budget_bytes, plan.model_bytes, report.page_bytes, curve.chosen.budget_bytes);
    Progress progress(quiet ? ProgressStyle::quiet : ProgressStyle::bar_only);
    progress.begin("planning", budgets.size(), 1);
    for (std::size_t i = 0; i < budgets.size(); ++i) {
        const bool known = budgets[i] == curve.chosen.budget_bytes;
        curve.points.push_back(known ? curve.chosen : point_of(budgets[i], planner.plan_for(budgets[i])));
        progress.step(i, model::format_bytes(budgets[i]));
    }
}

}  // namespace

int plan_command(const PlanOptions& options) {
    if (options.is_training) {
        return training_command(options);
    }
    model::Model model = read_model(options);
    PlanReport report;
    report.model = model_name(options.model);
    report.order = options.order;
    report.compute_ms = options.compute_ms;
    report.target = find_target(options, budget_bytes(options, model));
    const BlockTable table = group(std::move(model), options, report.target.budget_bytes);

    Planner planner(report.target, table, options);
    report.page_bytes = planner.page_bytes();
    if (!options.kinds.empty()) {
        report.kinds = planner.plan_kinds();
    }
    report.plan = planner.plan();
    report.compute_ms = options.kinds.empty() ? options.compute_ms : static_cast<double>(report.plan.compute_ns) / 1e6;
    report.parts = planner.block_parts();
    report.smallest_budget_block = planner.block_name(report.plan.smallest_budget_block);
    if (options.curve || !options.svg.empty()) {
        add_curve(planner, options.json, table, report);
    }
    if (!options.svg.empty()) {
        write_picture(options.svg, curve_picture(report.curve));
    }
    print(options.json ? json_text(report, table) : table_text(report, table, options.all_blocks, terminal_of(stdout)));
    finish_output();
    return 0;
}

}  // namespace stagehand::cli
