// The options of `stagehand plan --training`.
#pragma once

#include "options.h"

namespace CLI {
class App;
}  // namespace CLI

namespace stagehand::cli {

void add_training_options(CLI::App* app, PlanOptions& options);

// Checks which options are given together, after `app` has parsed them. Throws CLI::ParseError.
void check_plan_options(const CLI::App& app, const PlanOptions& options);

}  // namespace stagehand::cli
