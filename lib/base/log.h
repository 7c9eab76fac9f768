// The log of the process: lines go to the engine's receiver, or to standard error if STAGEHAND_LOG is set.
#pragma once

#include <cstdint>

#include <stagehand/base.h>

namespace stagehand {

bool log_enabled(int32_t level);

// Formats like printf and hands the line to the receiver. Cheap if the level is off. Allocates nothing.
void log_line(int32_t level, const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));

// Implements sh_set_log(): returns when the previous receiver is no longer called.
sh_status set_log(int32_t level, sh_log_fn log, void* user_data);

}  // namespace stagehand
