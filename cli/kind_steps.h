// Makes steps of several kinds in the simulation, so that the library plans for their mix.
#pragma once

#include <vector>

#include <stagehand/stagehand.h>

#include "block_table.h"
#include "library.h"
#include "options.h"

namespace stagehand::cli {

// The kinds of the plan for a cycle of such steps, in the order of `kinds`. `blocks` are those of the table.
std::vector<sh_kind_info> plan_kinds(const Device& device, const Runtime& runtime, const BlockTable& table,
                                     const std::vector<sh_block>& blocks, Order order,
                                     const std::vector<KindOption>& kinds);

}  // namespace stagehand::cli
