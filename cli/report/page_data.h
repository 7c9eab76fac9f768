// The figures of a report as JSON, for the page's script.
#pragma once

#include <string>
#include <vector>

#include "report/page.h"

namespace stagehand::cli {

// Safe inside a script element, whatever names it holds.
std::string page_data(const std::vector<ReportedRun>& runs);

}  // namespace stagehand::cli
