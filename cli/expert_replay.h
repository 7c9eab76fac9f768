// Replays the calls of a trace through the library's sets, on a device or in the simulation.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <stagehand/members.h>

#include "expert_table.h"
#include "expert_trace.h"
#include "model_files.h"
#include "planner.h"
#include "streaming_session.h"

namespace stagehand::cli {

struct ExpertCount {
    std::uint64_t uses = 0;
    std::uint64_t hits = 0;
};

// What a replay came to.
struct ExpertFigures {
    std::vector<ExpertCount> layers;  // as ExpertTable::layers
    std::vector<sh_set_info> sets;    // one for each size of expert
    std::uint64_t tokens = 0;
    std::uint64_t bytes_copied = 0;  // of experts and of the rest
    double ms = 0;                   // of all tokens

    ExpertCount all() const;
    double ms_per_token() const { return tokens == 0 ? 0 : ms / static_cast<double>(tokens); }
};

class ExpertReplay {
public:
    // Creates the sets, before the session's plan is made. All arguments must outlive the replay.
    ExpertReplay(StreamingSession& session, const ExpertTable& table, const ExpertTrace& trace);

    // Called with each expert while it is held: its number in ExpertTable::blocks, and its block.
    using Check = std::function<void(std::size_t expert, sh_block block)>;

    // Makes the calls of a token that belong to this use of a session's step: those of the block's layer.
    void visit(std::size_t token, std::size_t use, const Check& check = {});

    // Of the tokens so far, but for `tokens`, `bytes_copied` and `ms`.
    ExpertFigures figures() const;

private:
    struct Set {
        sh_set handle = 0;
        std::vector<std::size_t> layers;  // in ExpertTable::layers
        std::vector<sh_block> blocks;
    };

    void create(Set& set);
    void call(const ExpertCall& call, const Check& check);
    sh_set_info info(const Set& set) const;

    StreamingSession& session_;
    const ExpertTable& table_;
    const ExpertTrace& trace_;
    std::vector<Set> sets_;
    std::vector<std::size_t> set_of_;    // of each layer
    std::vector<std::size_t> group_of_;  // of each layer: its place in the set
    std::vector<std::size_t> use_of_;    // of each layer: the use of a step at which it is called
    std::vector<ExpertCount> counts_;
    std::size_t next_ = 0;  // call
};

// Replays the trace in the simulation of the target. `options` are those of the device.
ExpertFigures plan_experts(const PlanTarget& target, const ModelOptions& options, const ExpertTable& table,
                           const ExpertTrace& trace);

}  // namespace stagehand::cli
