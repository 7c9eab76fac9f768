#include "planner.h"

#include <algorithm>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "copy_speed.h"
#include "streaming_session.h"

namespace stagehand::cli {

namespace {

bool is_simulation(const std::string& device) { return device == "sim" || device.starts_with("sim:"); }

std::string simulation_options(const PlanTarget& target, std::uint64_t model_bytes, const ModelOptions& options) {
    if (is_simulation(options.device)) return options.backend_options;
    // Room for any budget that a plan may be asked for. The blocks together have at most 2^62 bytes, but a budget may
    // have up to 2^64 - 1.
    constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max() / 2;
    constexpr std::uint64_t spare = std::uint64_t{1} << 30;
    const std::uint64_t capacity = 2 * (std::min(std::max(model_bytes, target.budget_bytes), most - spare) + spare);
    std::string result = fmt::format("granularity={};bandwidth={};capacity={}", target.granularity_bytes,
                                     target.link_bytes_per_second, capacity);
    if (target.unpack_bytes_per_second != 0) result += fmt::format(";unpack_speed={}", target.unpack_bytes_per_second);
    return result;
}

// Each kind has to come again, and its times have to be measured.
constexpr int cycles = 6;

void make_step(sh_runtime* runtime, const Stream& stream, const KindOption& kind, const std::vector<sh_use>& uses,
               bool plans) {
    check(sh_step_begin(runtime, kind.name.c_str()), "a step");
    for (const sh_use& use : uses) {
        auto view = sh_sized<sh_view>();
        check(sh_acquire(runtime, use.block, stream.handle(), 0, &view), "a block");
        stream.compute(use.compute_ns);
        check(sh_release(runtime, use.block, stream.handle()), "a block");
    }
    if (plans) check(sh_plan(runtime, nullptr, nullptr), "plan");  // when the next step begins
    check(sh_step_end(runtime), "a step");
    stream.synchronize();
}

}  // namespace

Device open_simulation(const PlanTarget& target, std::uint64_t model_bytes, const ModelOptions& options) {
    DeviceRequest request;
    request.name = "sim";
    request.backend_options = simulation_options(target, model_bytes, options);
    request.budget_bytes = target.budget_bytes;
    request.page_bytes = target.page_bytes;
    request.link_bytes_per_second = target.link_bytes_per_second;
    return open_device(request);
}

PlanTarget find_target(const PlanOptions& options, std::uint64_t budget) {
    DeviceRequest request;
    request.name = options.device;
    request.backend_options = options.backend_options;
    request.budget_bytes = budget;
    request.link_bytes_per_second = options.bandwidth;
    Device device = open_device(request);
    const sh_device_caps caps = device_capabilities(device.get());
    PlanTarget target;
    target.device = caps.name;
    target.granularity_bytes = caps.granularity_bytes;
    target.page_bytes = caps.page_bytes;
    target.budget_bytes = device_memory(device.get()).budget_bytes;
    target.link_bytes_per_second = options.bandwidth;
    if (options.bandwidth == 0) {
        std::optional<CopySpeed> speed = measure_copy_speed(device.get());
        if (!speed) {
            // The budget is too small for the measurement. A plan takes no memory, so the measurement may take more.
            device.reset();
            request.name = target.device;
            request.budget_bytes = 0;
            device = open_device(request);
            speed = measure_copy_speed(device.get());
        }
        if (!speed) {
            throw CommandError(ExitCode::device, fmt::format("device {}: its memory is too small to measure the link; "
                                                             "give its speed with --bandwidth",
                                                             target.device));
        }
        target.link_bytes_per_second = static_cast<std::uint64_t>(speed->to_device_bytes_per_second);
        target.link_measured = true;
    }
    return target;
}

void measure_unpacking(const PlanOptions& options, const BlockTable& table, const ModelFiles& files,
                       PlanTarget& target) {
    DeviceRequest request;
    request.name = target.device;
    request.backend_options = options.backend_options;
    request.budget_bytes = target.budget_bytes;
    request.page_bytes = target.page_bytes;
    request.link_bytes_per_second = target.link_bytes_per_second;
    const Device device = open_device(request);
    const Runtime runtime = create_runtime(device.get(), "stagehand plan");
    const std::vector<sh_block> blocks = register_blocks(runtime.get(), table, &files);
    const std::vector<sh_use> uses = schedule(step_uses(table, options.order, options.compute_ms), blocks);
    set_order(runtime.get(), uses, "the order of use");
    sh_plan_options trial = SH_PLAN_OPTIONS_INIT;
    trial.flags = SH_PLAN_DRY_RUN;
    target.unpack_bytes_per_second = make_plan(runtime.get(), "plan", trial).unpack_bytes_per_second;
}

Planner::Planner(const PlanTarget& target, const BlockTable& table, const PlanOptions& options,
                 const ModelFiles* packed)
    : Planner(target, table, options, step_uses(table, options.order, options.compute_ms), packed) {}

Planner::Planner(const PlanTarget& target, const BlockTable& table, const PlanOptions& options,
                 const std::vector<StepUse>& order, const ModelFiles* packed)
    : table_(table), options_(options) {
    device_ = open_simulation(target, table.block_bytes, options);
    runtime_ = create_runtime(device_.get(), "stagehand plan");
    blocks_ = register_blocks(runtime_.get(), table, packed);
    std::vector<sh_use> uses = schedule(order, blocks_);
    if (!options.kinds.empty())  // their times are measured
        for (sh_use& use : uses) use.compute_ns = 0;
    set_order(runtime_.get(), uses, "the order of use");
}

sh_plan_info Planner::plan() { return make_plan(runtime_.get(), "plan"); }

std::vector<double> Planner::plan_kinds() {
    const std::vector<KindOption>& kinds = options_.kinds;
    std::vector<std::vector<sh_use>> uses;
    for (const KindOption& kind : kinds)
        uses.push_back(schedule(step_uses(table_, options_.order, kind.compute_ms), blocks_));
    const Stream stream(device_.get());
    std::vector<double> step_ms(kinds.size());
    for (int cycle = 0; cycle < cycles; ++cycle) {
        for (std::size_t i = 0; i < kinds.size(); ++i) {
            const std::uint64_t began = device_clock_ns(device_.get());
            for (std::uint32_t step = 0; step < kinds[i].steps; ++step) {
                const bool last = i + 1 == kinds.size() && step + 1 == kinds[i].steps;
                make_step(runtime_.get(), stream, kinds[i], uses[i], last && cycle + 3 == cycles);
            }
            // Of the last cycle. The cycle before begins with the new plan.
            step_ms[i] = static_cast<double>(device_clock_ns(device_.get()) - began) / 1e6 / kinds[i].steps;
        }
    }
    return step_ms;
}

std::vector<BlockPart> Planner::block_parts() const {
    std::vector<BlockPart> parts;
    parts.reserve(blocks_.size());
    for (const sh_block block : blocks_) {
        auto state = sh_sized<sh_block_state>();
        check(sh_block_get_state(runtime_.get(), block, &state), "block");
        parts.push_back({state.resident_bytes, state.streamed_bytes});
    }
    return parts;
}

std::string Planner::block_name(sh_block block) const {
    const auto found = std::find(blocks_.begin(), blocks_.end(), block);
    return found == blocks_.end() ? "" : table_.blocks[static_cast<std::size_t>(found - blocks_.begin())].name;
}

sh_plan_info Planner::plan_for(std::uint64_t budget_bytes, std::uint64_t link_bytes_per_second) const {
    sh_plan_options options = SH_PLAN_OPTIONS_INIT;
    options.flags = SH_PLAN_DRY_RUN;
    options.budget_bytes = budget_bytes;
    options.link_bytes_per_second = link_bytes_per_second;
    return make_plan(runtime_.get(), "plan", options);
}

std::uint64_t Planner::page_bytes() const { return device_memory(device_.get()).page_bytes; }

}  // namespace stagehand::cli
