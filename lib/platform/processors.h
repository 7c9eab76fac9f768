// Sets of processors, as the system writes them: "0-7,16,24-31".
#pragma once

#include <optional>
#include <string_view>

#include <sched.h>

namespace stagehand::platform {

// Nothing if the text is not a list of processors that a set can hold, or if the list is empty.
std::optional<cpu_set_t> parse_processors(std::string_view text);

// Lets the calling thread run on these processors only. False if the system refuses: this process may use none of them.
bool run_on(const cpu_set_t& processors) noexcept;

}  // namespace stagehand::platform
