// A plan as tables and as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <stagehand/stagehand.h>

#include "block_table.h"
#include "curve.h"
#include "expert_report.h"
#include "options.h"
#include "planner.h"
#include "terminal.h"

namespace stagehand::cli {

// A kind of step with --kinds.
struct KindReport {
    std::string name;
    double weight = 0;  // its part of the steps
    double compute_ms = 0;
    double step_ms = 0;
    double bound_ms = 0;
    double alone_ms = 0;  // a step with a plan for this kind alone
};

struct PlanReport {
    std::string model;
    PlanTarget target;
    std::uint64_t page_bytes = 0;
    Order order = Order::forward;
    double compute_ms = 0;
    sh_plan_info plan = sh_sized<sh_plan_info>();
    std::optional<sh_plan_info> plain;  // of a packed model: the plan for the plain one
    std::string smallest_budget_block;
    std::vector<BlockPart> parts;         // as BlockTable::blocks
    std::vector<KindReport> kinds;        // with --kinds
    Curve curve;                          // has no points without --curve
    std::optional<ExpertReport> experts;  // with --experts; the rest of the report moves all experts as blocks
};

std::string json_text(const PlanReport& report, const BlockTable& table);

// With `all_blocks` each block has a row. Otherwise neighbours that are alike share a row, and a long list is cut.
std::string table_text(const PlanReport& report, const BlockTable& table, bool all_blocks, const Terminal& terminal);

}  // namespace stagehand::cli
