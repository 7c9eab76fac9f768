// The engine's callback after each load.
#pragma once

#include <span>

#include "base/status.h"
#include "core/movement/load.h"
#include "core/memory/registry.h"

namespace stagehand::core {

// Tells the callback of each of the unit's blocks which of its bytes the copies that were queued on `stream` bring, so that it can
// queue its own work there. What it throws or refuses with becomes SH_ERROR_CALLBACK.
Status call_on_load(Registry& registry, Unit& unit, std::span<const Load::Range> ranges, sh_stream stream);

}  // namespace stagehand::core
