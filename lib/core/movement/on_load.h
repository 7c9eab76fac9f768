// The call of the engine's on_load callback after each load.
#pragma once

#include <span>

#include "base/status.h"
#include "core/memory/registry.h"
#include "core/movement/load.h"

namespace stagehand::core {

bool has_on_load(Registry& registry, const Unit& unit);

// Tells the callback of each of the unit's blocks which bytes the copies on `stream` load, so that the callback can
// queue its own work there. An exception or an error code of the callback becomes SH_ERROR_CALLBACK.
Status call_on_load(Registry& registry, Unit& unit, std::span<const Load::Range> ranges, sh_stream stream);

}  // namespace stagehand::core
