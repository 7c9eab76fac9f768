// Which experts a model's tokens used: the file of --experts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "expert_table.h"

namespace stagehand::cli {

// A call of a layer.
struct ExpertCall {
    std::size_t layer = 0;               // in ExpertTable::layers
    std::vector<std::uint32_t> experts;  // one or more, each once
};

struct ExpertTrace {
    std::vector<ExpertCall> calls;
    // The first call of each token, or batch. A token ends where the number of the layer does not grow.
    std::vector<std::size_t> tokens;

    std::size_t end_of(std::size_t token) const { return token + 1 < tokens.size() ? tokens[token + 1] : calls.size(); }
};

// Reads lines such as {"layer": 3, "experts": [1, 5]}, one for each call, in order. Throws CommandError with the number
// of a line that is something else, or names a layer or an expert that the table does not have.
ExpertTrace read_expert_trace(const std::string& path, const ExpertTable& table);

}  // namespace stagehand::cli
