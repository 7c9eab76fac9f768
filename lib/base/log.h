// The process's log: lines for the engine's receiver, or for standard error when STAGEHAND_LOG asks for it.
#pragma once

#include <cstdint>

#include <stagehand/base.h>

namespace stagehand {

bool log_enabled(int32_t level);

// Formats like printf and hands the line to the receiver. Cheap when the level is off. Needs no memory.
void log_line(int32_t level, const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));

// Behind sh_set_log(): returns when the receiver that was set before is no longer called.
sh_status set_log(int32_t level, sh_log_fn log, void* user_data);

}  // namespace stagehand
