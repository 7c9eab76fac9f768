// The report as one HTML page, which loads nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/advice.h"
#include "report/run_file.h"
#include "report/trace_file.h"
#include "report/what_if.h"

namespace stagehand::cli {

struct ReportedRun {
    RunFile run;
    std::optional<TraceFile> trace;
    WhatIf what_if;
    Advice advice;
};

std::string report_page(const std::vector<ReportedRun>& runs);

}  // namespace stagehand::cli
