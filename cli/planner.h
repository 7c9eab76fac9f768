// Asks the library for plans of a model, in the simulation, so that no device is used.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stagehand/stagehand.h>

#include "block_table.h"
#include "library.h"
#include "model_files.h"
#include "options.h"

namespace stagehand::cli {

// The properties of a device that plans depend on, and the budget.
struct PlanTarget {
    std::string device;  // the name of the device
    std::uint64_t budget_bytes = 0;
    std::uint64_t granularity_bytes = 0;
    std::uint64_t page_bytes = 0;  // 0: by the budget
    std::uint64_t link_bytes_per_second = 0;
    bool link_measured = false;
    // Of contents, for a packed model. 0: the device does not unpack.
    std::uint64_t unpack_bytes_per_second = 0;
};

// Opens the device that `options` names, and measures its link unless a bandwidth is given. `budget` 0 stands for the
// automatic budget of the device.
PlanTarget find_target(const PlanOptions& options, std::uint64_t budget);

// Opens the simulation of the target, for a model of so many bytes.
Device open_simulation(const PlanTarget& target, std::uint64_t model_bytes, const ModelOptions& options);

// Measures how fast the device unpacks. `files` are those of the table's model, which is packed.
void measure_unpacking(const PlanOptions& options, const BlockTable& table, const ModelFiles& files,
                       PlanTarget& target);

// The parts of a block in a plan. Both are 0 for an unordered block.
struct BlockPart {
    std::uint64_t resident_bytes = 0;
    std::uint64_t streamed_bytes = 0;
};

class Planner {
public:
    // `table` and `options` must outlive the planner, and so must the files of a packed model, whose weights the plan
    // brings packed. Without files the plan is the one for plain weights.
    Planner(const PlanTarget& target, const BlockTable& table, const PlanOptions& options,
            const ModelFiles* packed = nullptr);

    // For an order of use that is known, with its times.
    Planner(const PlanTarget& target, const BlockTable& table, const PlanOptions& options,
            const std::vector<StepUse>& order, const ModelFiles* packed = nullptr);

    // Makes the plan for the budget of the target. block_parts() is then about this plan.
    sh_plan_info plan();
    // Plans for the kinds of the options, which come in turn. plan() is then about the kind that the plan is for.
    // Returns the time of a step of each kind, in milliseconds.
    std::vector<double> plan_kinds();
    std::vector<BlockPart> block_parts() const;
    // The name of a block; empty if the block is not one of this planner.
    std::string block_name(sh_block block) const;

    // The figures for another budget, and for another link unless that is 0. The plan in force does not change.
    sh_plan_info plan_for(std::uint64_t budget_bytes, std::uint64_t link_bytes_per_second = 0) const;

    std::uint64_t page_bytes() const;

private:
    const BlockTable& table_;
    const PlanOptions& options_;
    Device device_;
    Runtime runtime_;
    std::vector<sh_block> blocks_;
};

}  // namespace stagehand::cli
