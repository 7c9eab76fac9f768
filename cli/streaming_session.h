// Streams a model on a device step by step, as an engine does.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <stagehand/stagehand.h>

#include "block_table.h"
#include "library.h"
#include "model_files.h"
#include "options.h"

namespace stagehand::cli {

// Blocks as the library takes them. `blocks` and `files` must outlive them.
class BlockDescs {
public:
    // Without `files`: see register_blocks().
    BlockDescs(std::span<const model::Block> blocks, const ModelFiles* files);
    BlockDescs(const BlockDescs&) = delete;
    BlockDescs& operator=(const BlockDescs&) = delete;

    const sh_block_desc* data() const { return descs_.data(); }
    std::size_t size() const { return descs_.size(); }

private:
    std::vector<sh_segment> segments_;
    std::vector<sh_block_desc> descs_;
};

// Registers the blocks of `table` in a runtime, and returns their ids. Without `files`, blocks have sizes but no
// contents: on a device with virtual time, which needs the files of a packed model for the sizes of its chunks.
std::vector<sh_block> register_blocks(sh_runtime* runtime, const BlockTable& table, const ModelFiles* files);

class StreamingSession {
public:
    // `table` and `files` must outlive the session; so must the device.
    StreamingSession(sh_device* device, const BlockTable& table, const ModelFiles& files, Order order,
                     double compute_ms);

    // The files of the blocks, as register_blocks() takes them.
    const ModelFiles* contents() const { return contents_; }
    // Puts the plan into force.
    sh_plan_info plan();

    // Called for each use, after the block is acquired and its compute is queued, and before it is released.
    using Visit = std::function<void(std::size_t use, const StepUse&, sh_block)>;

    // Streams one step: for each use it acquires the block, computes, calls `visit`, and releases the block. Waits
    // until the compute has finished. Returns false if a signal came: the step has ended, but not all blocks were used.
    bool step(const Visit& visit);

    sh_runtime* runtime() const { return runtime_.get(); }
    const Stream& compute_stream() const { return compute_; }
    std::size_t uses() const { return uses_.size(); }
    // The last use of a block that has this name, or is a part of what has it. Nothing if there is none.
    std::optional<std::size_t> last_use(std::string_view name) const;

private:
    [[noreturn]] void fail(sh_status status, std::size_t block) const;

    const BlockTable& table_;
    const ModelFiles& files_;
    const ModelFiles* const contents_;
    // Declared before the runtime, because a stream must outlive the steps in which it was used.
    Stream compute_;
    Runtime runtime_;
    std::vector<StepUse> uses_;
    std::vector<sh_block> blocks_;
};

}  // namespace stagehand::cli
