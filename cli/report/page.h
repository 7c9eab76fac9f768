// A report: what was read about a run, what other budgets would change, what to say about it, and the page.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "curve.h"
#include "report/run_file.h"
#include "report/trace_file.h"

namespace stagehand::cli {

// What other budgets and another link would change: the plan of a run, made again in the simulation.
struct WhatIf {
    Curve curve;                // has no points if `problem` says why
    double faster_link_ms = 0;  // the step with a link twice as fast, and the same budget
    std::string problem;
};

// `plan` must have its blocks and their order of use, or the result has a problem.
WhatIf ask_what_if(const RunFile& run);

// What a report says in words: how a run went, and what would help.
struct Advice {
    std::string headline;              // one sentence
    std::vector<std::string> course;   // how the steps went, and why they took this long
    std::vector<std::string> changes;  // what would help, or would cost nothing
};

Advice advice_of(const RunFile& run, const WhatIf& what_if);

struct ReportedRun {
    RunFile run;
    std::optional<TraceFile> trace;
    WhatIf what_if;
    Advice advice;
};

// One HTML page, which loads nothing.
std::string report_page(const std::vector<ReportedRun>& runs);

// The figures of the page as JSON, for its script. Safe inside a script element, whatever names it holds.
std::string page_data(const std::vector<ReportedRun>& runs);

// Texts that the build puts into the command: the page's style and script, and the plotting library.
extern const std::string_view page_style;
extern const std::string_view page_script;
extern const std::string_view plotting_script;
extern const std::string_view plotting_version;
extern const std::string_view plotting_licence;

}  // namespace stagehand::cli
