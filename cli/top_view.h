// The text that `stagehand top` shows for a sample.
#pragma once

#include <string>

#include "terminal.h"
#include "top_sample.h"

namespace stagehand::cli {

// A line about the process, a table of its devices, and a table of its runtimes.
std::string top_view(const Terminal& terminal, const Sample& sample);

}  // namespace stagehand::cli
