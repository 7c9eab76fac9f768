// Captures: acquires and releases while the engine captures a step into a graph of its driver.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "core/memory/model_memory.h"
#include "core/movement/capture.h"
#include "core/movement/graph.h"
#include "core/runtime/budget_share.h"
#include "core/runtime/clearance.h"
#include "core/runtime/gate.h"
#include "core/runtime/views.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class Captures {
public:
    Captures(Gate& gate, BudgetShare& share, ModelMemory& memory, Clearance& clearance, Views& views)
        : gate_(gate), share_(share), memory_(memory), clearance_(clearance), views_(views) {}

    // Whether a capture can begin on the stream, as far as this class can tell.
    Status check(sh_stream stream) const;
    Status begin(sh_stream stream);
    Status acquire(sh_block id, sh_stream stream, sh_view* out);
    Status acquire_many(std::span<const sh_block> ids, sh_stream stream, std::span<sh_view* const> out);
    Status release(Block& block, sh_stream stream);
    // `out_graph` receives the captured graph. It is null if the engine gives the capture up.
    Status end(sh_stream stream, std::unique_ptr<Graph>* out_graph);

private:
    Gate& gate_;
    BudgetShare& share_;
    ModelMemory& memory_;
    Clearance& clearance_;
    Views& views_;
    std::unique_ptr<Capture> capture_;
    // Failed or given-up captures. They are kept until their streams no longer capture.
    std::vector<std::unique_ptr<Capture>> abandoned_;
};

}  // namespace stagehand::core
