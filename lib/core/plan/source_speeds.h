// How fast the sources of units deliver, as plans count with it.
#pragma once

#include <span>
#include <vector>

#include "core/memory/block.h"

namespace stagehand::core {

// For each unit, the nanoseconds that its source takes for a byte. 0 for units that need no workers, and if nothing is
// known. A unit that workers have loaded only once is taken to be no slower than the slowest one that is known. The
// values are rounded to steps of 12 %, so that sources of one kind count as equally fast.
void find_source_ns_per_byte(std::span<const Unit> units, std::vector<double>* out);

}  // namespace stagehand::core
