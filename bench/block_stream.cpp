#include "block_stream.h"

#include <algorithm>

#include <fmt/format.h>

#include "interrupt.h"
#include "report.h"

namespace stagehand::cli::bench {

BlockStream::BlockStream(sh_device* device, const StreamOptions& options, const std::vector<BlockSource>& blocks)
    : device_(device), name_(options.name), compute_(device), compute_ns_(blocks.size(), 0) {
    sh_runtime_options runtime_options = SH_RUNTIME_OPTIONS_INIT;
    runtime_options.name = options.name.c_str();
    runtime_options.max_bytes = options.max_bytes;
    runtime_options.max_held = options.max_held;
    sh_runtime* runtime = nullptr;
    check(sh_runtime_create(device, &runtime_options, &runtime), name_);
    runtime_.reset(runtime);
    for (const BlockSource& block : blocks) {
        sizes_.push_back(block.bytes);
        total_bytes_ += block.bytes;
        largest_bytes_ = std::max(largest_bytes_, block.bytes);
    }
    add(options, blocks);
}

void BlockStream::add(const StreamOptions& options, const std::vector<BlockSource>& blocks) {
    std::vector<std::string> names;
    names.reserve(blocks.size());
    std::vector<sh_block_desc> descs(blocks.size(), sh_block_desc(SH_BLOCK_DESC_INIT));
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        names.push_back(fmt::format("block {}", i));
        descs[i].flags = options.block_flags;
        descs[i].bytes = blocks[i].bytes;
        descs[i].segments = blocks[i].segments.data();
        descs[i].segment_count = blocks[i].segments.size();
        descs[i].name = names.back().c_str();
    }
    blocks_.resize(blocks.size());
    check(sh_register_blocks(runtime_.get(), descs.data(), descs.size(), blocks_.data()), name_);
}

void BlockStream::set_compute(std::uint64_t ns) {
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
        compute_ns_[i] = static_cast<std::uint64_t>(static_cast<double>(ns) * static_cast<double>(sizes_[i]) /
                                                    static_cast<double>(total_bytes_));
    }
}

std::optional<std::uint64_t> BlockStream::compute_alone() {
    // The first launch may load code that later launches use.
    compute_.compute(1000);
    compute_.synchronize();
    constexpr int most_rounds = 3;
    constexpr std::uint64_t enough_ns = 100'000'000;
    std::uint64_t shortest = UINT64_MAX;
    std::uint64_t spent = 0;
    for (int round = 0; round < most_rounds && spent < enough_ns; ++round) {
        const std::uint64_t ns = elapsed_ns(device_, [&] {
            for (const std::uint64_t use_ns : compute_ns_)
                if (use_ns > 0 && interrupted() == 0) compute_.compute(use_ns);
            compute_.synchronize();
        });
        if (interrupted() != 0) return std::nullopt;
        shortest = std::min(shortest, ns);
        spent += ns;
    }
    return shortest;
}

void BlockStream::tell_order(std::uint64_t ns) {
    std::uint64_t launched = 0;
    for (const std::uint64_t use_ns : compute_ns_) launched += use_ns;
    // The cost of the launches, the same for each launch.
    const std::uint64_t each = (ns - std::min(ns, launched)) / compute_ns_.size();
    std::vector<sh_use> uses(blocks_.size(), sh_use(SH_USE_INIT));
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
        uses[i].block = blocks_[i];
        // 0 asks the library to measure the compute time.
        uses[i].compute_ns = std::max<std::uint64_t>(compute_ns_[i] + each, 1);
    }
    set_order(runtime_.get(), uses, name_);
}

sh_plan_info BlockStream::plan() { return plan(0); }

sh_plan_info BlockStream::dry_plan() { return plan(SH_PLAN_DRY_RUN); }

sh_plan_info BlockStream::plan(std::uint32_t flags) {
    sh_plan_options options = SH_PLAN_OPTIONS_INIT;
    options.flags = flags;
    return make_plan(runtime_.get(), name_, options);
}

void BlockStream::queue_use(std::size_t block) {
    auto view = sh_sized<sh_view>();
    check(sh_acquire(runtime_.get(), blocks_[block], compute_.handle(), 0, &view), name_);
    if (compute_ns_[block] > 0) compute_.compute(compute_ns_[block]);
    check(sh_release(runtime_.get(), blocks_[block], compute_.handle()), name_);
}

void BlockStream::queue_uses() {
    for (std::size_t i = 0; i < blocks_.size(); ++i) queue_use(i);
}

void BlockStream::queue_step() {
    check(sh_step_begin(runtime_.get(), nullptr), name_);
    queue_uses();
    check(sh_step_end(runtime_.get()), name_);
}

bool BlockStream::step() {
    check(sh_step_begin(runtime_.get(), nullptr), name_);
    bool complete = true;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
        if (interrupted() != 0) {
            complete = false;
            break;
        }
        queue_use(i);
    }
    check(sh_step_end(runtime_.get()), name_);
    compute_.synchronize();
    return complete;
}

std::optional<StepTimes> BlockStream::run(int count) {
    // The second step begins with a ring that the end of the first step has filled, without a wait of the device.
    if (!step() || !step()) return std::nullopt;
    StepTimes times;
    const sh_runtime_stats before = runtime_stats(runtime_.get());
    std::uint64_t begin = device_clock_ns(device_);
    for (int i = 0; i < count; ++i) {
        if (!step()) return std::nullopt;
        const std::uint64_t end = device_clock_ns(device_);
        times.all_ns.push_back(static_cast<double>(end - begin));
        begin = end;
    }
    const sh_runtime_stats after = runtime_stats(runtime_.get());
    times.bytes_copied = after.bytes_to_device - before.bytes_to_device;
    times.host_waits = after.host_waits - before.host_waits;
    times.step_ns = median(times.all_ns);
    return times;
}

}  // namespace stagehand::cli::bench
