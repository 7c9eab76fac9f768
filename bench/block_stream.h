// Streams blocks step after step, as an engine does, and measures the time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <stagehand/stagehand.h>

#include "library.h"

namespace stagehand::cli::bench {

// A block and the sources of its bytes.
struct BlockSource {
    std::uint64_t bytes = 0;
    std::vector<sh_segment> segments;
};

struct StreamOptions {
    std::string name;             // for messages
    std::uint64_t max_bytes = 0;  // device memory
    std::uint32_t max_held = 1;
    std::uint32_t block_flags = 0;
};

struct StepTimes {
    double step_ns = 0;              // median
    std::vector<double> all_ns;      // of each step, in order
    std::uint64_t bytes_copied = 0;  // in all steps together
    std::uint64_t host_waits = 0;    // in all steps together
};

class BlockStream {
public:
    // The device and the memory of the sources must outlive this object.
    BlockStream(sh_device* device, const StreamOptions& options, const std::vector<BlockSource>& blocks);

    // Steps now compute for `ns` nanoseconds in total, which the blocks share in proportion to their bytes. 0: no
    // compute.
    void set_compute(std::uint64_t ns);

    // The time of a step's computing alone, launches included: the shortest of a few measurements, or a single long
    // one. Nothing if a signal came.
    std::optional<std::uint64_t> compute_alone();

    // Gives the library the order, with `ns` nanoseconds of compute per step.
    void tell_order(std::uint64_t ns);
    // Makes the plan and puts it into force.
    sh_plan_info plan();
    // Makes a plan without changing anything on the device.
    sh_plan_info dry_plan();

    // Queues a step: one use of each block in order, with its compute.
    void queue_step();
    // Queues only the uses, for a capture.
    void queue_uses();
    void synchronize() const { compute_.synchronize(); }

    // Runs a step that loads the resident parts, one more step, and then `count` timed steps. Each is timed from the
    // end of the step before until its compute has finished. Nothing if a signal came.
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
    // Declared before the runtime, because a stream must outlive the steps in which it was used.
    Stream compute_;
    Runtime runtime_;
    std::vector<std::uint64_t> sizes_;
    std::vector<std::uint64_t> compute_ns_;
    std::vector<sh_block> blocks_;
    std::uint64_t total_bytes_ = 0;
    std::uint64_t largest_bytes_ = 0;
};

// The nanoseconds that `work` takes by the device's clock.
template <typename Work>
std::uint64_t elapsed_ns(sh_device* device, Work work) {
    const std::uint64_t begin = device_clock_ns(device);
    work();
    return device_clock_ns(device) - begin;
}

}  // namespace stagehand::cli::bench
