// What a report says in words: how a run went, and what would help.
#pragma once

#include <string>
#include <vector>

#include "report/run_file.h"
#include "report/what_if.h"

namespace stagehand::cli {

struct Advice {
    std::string headline;              // one sentence
    std::vector<std::string> course;   // how the steps went, and why they took this long
    std::vector<std::string> changes;  // what would help, or would cost nothing
};

Advice advice_of(const RunFile& run, const WhatIf& what_if);

}  // namespace stagehand::cli
