// A model on a device, streamed step by step as an engine would do it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <stagehand/stagehand.h>

#include "block_table.h"
#include "library.h"
#include "model_files.h"
#include "options.h"

namespace stagehand::cli {

// Registers `table` in a runtime. On a device without contents (virtual time) blocks have sizes only. Returns
// their ids.
std::vector<sh_block> register_blocks(sh_runtime* runtime, const BlockTable& table, const ModelFiles* files);

class StreamingSession {
public:
    // `table` and `files` must outlive the session; so must the device.
    StreamingSession(sh_device* device, const BlockTable& table, const ModelFiles& files, Order order,
                     double compute_ms);

    // Puts the plan into force.
    sh_plan_info plan();

    // Told of a block that is acquired and on which the step's compute is queued, before it is released.
    using Visit = std::function<void(std::size_t use, const StepUse&, sh_block)>;

    // Streams one step and waits until its compute has finished: per use acquire, compute, visit, release.
    // False when a signal came: the step has ended, but not all blocks were used.
    bool step(const Visit& visit);

    sh_runtime* runtime() const { return runtime_.get(); }
    const Stream& compute_stream() const { return compute_; }
    std::size_t uses() const { return uses_.size(); }

private:
    [[noreturn]] void fail(sh_status status, std::size_t block) const;

    const BlockTable& table_;
    const ModelFiles& files_;
    // Declared before the runtime: a stream outlives the steps in which it was used.
    Stream compute_;
    Runtime runtime_;
    std::vector<StepUse> uses_;
    std::vector<sh_block> blocks_;
};

}  // namespace stagehand::cli
