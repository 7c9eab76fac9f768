// Asks the library for plans of a model without touching a device: through the simulation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stagehand/stagehand.h>

#include "block_table.h"
#include "library.h"
#include "options.h"

namespace stagehand::cli {

// What plans depend on beside the model and the budget.
struct PlanTarget {
    std::string device;  // its name, as people know it
    std::uint64_t budget_bytes = 0;
    std::uint64_t granularity_bytes = 0;
    std::uint64_t page_bytes = 0;  // 0: by the budget
    std::uint64_t link_bytes_per_second = 0;
    bool link_measured = false;
};

// Looks at the device that `options` names; measures its link unless a bandwidth is given. `budget` 0 is
// resolved to the device's automatic one.
PlanTarget find_target(const PlanOptions& options, std::uint64_t budget);

// A block's part in a plan.
struct BlockPart {
    std::uint64_t resident_bytes = 0;
    std::uint64_t streamed_bytes = 0;
};

class Planner {
public:
    // `table` must outlive the planner.
    Planner(const PlanTarget& target, const BlockTable& table, const PlanOptions& options);

    // The plan for the target's budget, which block_parts() and block_name() then speak of.
    sh_plan_info plan();
    std::vector<BlockPart> block_parts() const;
    // The name of a block of this planner; empty if it is none.
    std::string block_name(sh_block block) const;

    // The figures for another budget; changes nothing.
    sh_plan_info plan_for(std::uint64_t budget_bytes) const;

    std::uint64_t page_bytes() const;

private:
    const BlockTable& table_;
    Device device_;
    Runtime runtime_;
    std::vector<sh_block> blocks_;
};

}  // namespace stagehand::cli
