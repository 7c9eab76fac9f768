// A plan as tables and as JSON.
#pragma once

#include <string>
#include <vector>

#include <stagehand/stagehand.h>

#include "block_table.h"
#include "curve.h"
#include "options.h"
#include "planner.h"
#include "terminal.h"

namespace stagehand::cli {

struct PlanReport {
    std::string model;
    PlanTarget target;
    std::uint64_t page_bytes = 0;
    Order order = Order::forward;
    double compute_ms = 0;
    sh_plan_info plan = SH_PLAN_INFO_INIT;
    std::string smallest_budget_block;
    std::vector<BlockPart> parts;  // as BlockTable::blocks
    Curve curve;                   // without points unless asked for
};

std::string json_text(const PlanReport& report, const BlockTable& table);

// `all_blocks`: a row for each block; else like neighbours share one, and a long list is cut.
std::string table_text(const PlanReport& report, const BlockTable& table, bool all_blocks,
                       const Terminal& terminal);

}  // namespace stagehand::cli
