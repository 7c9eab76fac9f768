// What a trace of experts came to, as tables and as JSON.
#pragma once

#include <optional>
#include <string>

#include "expert_replay.h"
#include "expert_table.h"
#include "json_output.h"
#include "terminal.h"

namespace stagehand::cli {

struct ExpertReport {
    ExpertTable table;
    ExpertFigures planned;
    std::optional<ExpertFigures> measured;  // with `run`
};

Json experts_json(const ExpertReport& report);
std::string experts_text(const ExpertReport& report, const Terminal& terminal);

}  // namespace stagehand::cli
