// What other budgets and another link would change: the plan of a run, made again in the simulation.
#pragma once

#include <string>

#include "curve.h"
#include "report/run_file.h"

namespace stagehand::cli {

struct WhatIf {
    Curve curve;                // has no points if `problem` says why
    double faster_link_ms = 0;  // the step with a link twice as fast, and the same budget
    std::string problem;
};

// `plan` must have its blocks and their order of use, or the result has a problem.
WhatIf ask_what_if(const RunFile& run);

}  // namespace stagehand::cli
