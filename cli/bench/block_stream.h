// Blocks that are streamed step after step, as an engine would do it, and the time that it takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <stagehand/stagehand.h>

#include "library.h"

namespace stagehand::cli::bench {

// A block and where its bytes come from.
struct BlockSource {
    std::uint64_t bytes = 0;
    std::vector<sh_segment> segments;
};

struct StreamOptions {
    std::string name;             // for messages
    std::uint64_t max_bytes = 0;  // of device memory
    std::uint32_t max_held = 1;
    std::uint32_t block_flags = 0;
};

struct StepTimes {
    double step_ns = 0;              // median
    std::vector<double> all_ns;      // each step's, in order
    std::uint64_t bytes_copied = 0;  // in all of them together
    std::uint64_t host_waits = 0;    // likewise
};

class BlockStream {
public:
    // The device, and what the sources point to, must outlive this.
    BlockStream(sh_device* device, const StreamOptions& options, const std::vector<BlockSource>& blocks);

    // From now on a step computes for `ns` in all, shared among the blocks by their bytes; 0: not at all.
    void set_compute(std::uint64_t ns);

    // What the computing of a step takes by itself, launches included: the shortest of a few times, or of one
    // that is long. Nothing when a signal came.
    std::optional<std::uint64_t> compute_alone();

    // Tells the library the order, and that a step computes for `ns` in all.
    void tell_order(std::uint64_t ns);
    // The plan, put into force.
    sh_plan_info plan();
    // The plan alone; nothing on the device changes.
    sh_plan_info dry_plan();

    // Queues a step: one use of each block, in order, with its computing.
    void queue_step();
    // The uses alone, as a capture wants them.
    void queue_uses();
    void synchronize() const { compute_.synchronize(); }

    // A step that loads what stays, one more, and then `count` that are timed, each from the end of the one
    // before until its compute has finished. Nothing when a signal came.
    std::optional<StepTimes> run(int count);

    sh_runtime* runtime() const { return runtime_.get(); }
    sh_stream handle() const { return compute_.handle(); }
    std::uint64_t total_bytes() const { return total_bytes_; }
    std::uint64_t largest_bytes() const { return largest_bytes_; }

private:
    sh_plan_info plan(std::uint32_t flags);
    void add(const StreamOptions& options, const std::vector<BlockSource>& blocks);
    void queue_use(std::size_t block);
    bool step();

    sh_device* device_;
    std::string name_;
    // Declared before the runtime: a stream outlives the steps in which it was used.
    Stream compute_;
    Runtime runtime_;
    std::vector<std::uint64_t> sizes_;
    std::vector<std::uint64_t> compute_ns_;
    std::vector<sh_block> blocks_;
    std::uint64_t total_bytes_ = 0;
    std::uint64_t largest_bytes_ = 0;
};

// How long `work` takes, in nanoseconds of the device's clock.
template <typename Work>
std::uint64_t elapsed_ns(sh_device* device, Work work) {
    const std::uint64_t begin = device_clock_ns(device);
    work();
    return device_clock_ns(device) - begin;
}

}  // namespace stagehand::cli::bench
