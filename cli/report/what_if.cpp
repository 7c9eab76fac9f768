// Plans of a run for other budgets and another link.
#include "report/page.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "block_table.h"
#include "exit_code.h"
#include "planner.h"

namespace stagehand::cli {

namespace {

BlockTable table_of(const LoggedPlan& plan) {
    BlockTable table;
    for (const LoggedBlock& block : plan.blocks) {
        model::Block& to = table.blocks.emplace_back();
        to.name = block.name;
        to.bytes = block.bytes;
        to.unordered = block.unordered;
    }
    return table;
}

PlanTarget target_of(const LoggedPlan& plan) {
    PlanTarget target;
    target.device = plan.device;
    target.budget_bytes = plan.share_bytes;
    target.granularity_bytes = std::max<std::uint64_t>(plan.granularity_bytes, 1);
    target.page_bytes = plan.page_bytes;
    target.link_bytes_per_second = plan.link_bytes_per_second;
    return target;
}

void fill_in(const RunFile& run, WhatIf& result) {
    const LoggedPlan& plan = *run.plan;
    const BlockTable table = table_of(plan);
    const PlanTarget target = target_of(plan);
    const PlanOptions options;
    Planner planner(target, table, options, plan.uses);
    const sh_plan_info info = planner.plan();
    fill_curve(planner, true, info, target.budget_bytes, result.curve);
    result.curve.title = run.label;
    const std::uint64_t faster_link = std::min(plan.link_bytes_per_second, UINT64_MAX / 2) * 2;
    result.faster_link_ms = static_cast<double>(planner.plan_for(target.budget_bytes, faster_link).step_ns) / 1e6;
}

}  // namespace

WhatIf ask_what_if(const RunFile& run) {
    WhatIf result;
    if (!run.plan) {
        result.problem =
            "The telemetry holds no plan, so that other budgets cannot be computed. "
            "Libraries before version 0.2 do not write it.";
    } else if (run.plan->blocks.empty()) {
        result.problem =
            "The telemetry does not list the blocks of the last plan, so that other budgets cannot be "
            "computed.";
    } else if (run.plan->uses.empty()) {
        result.problem =
            "The order of use was not known when the plan was made, so that other budgets cannot be "
            "computed.";
    } else if (run.plan->link_bytes_per_second == 0) {
        result.problem =
            "The speed of the link was not known when the plan was made, so that other budgets cannot be "
            "computed.";
    } else {
        try {
            fill_in(run, result);
        } catch (const CommandError& error) {
            result = {};
            result.problem = fmt::format("Other budgets cannot be computed: {}", error.what());
        }
    }
    return result;
}

}  // namespace stagehand::cli
