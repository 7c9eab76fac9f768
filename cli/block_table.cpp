#include "block_table.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "exit_code.h"
#include "model/layer_names.h"
#include "model/quantity.h"
#include "model/read_model.h"
#include "model/text.h"
#include "units.h"

namespace stagehand::cli {

void close_gaps(model::Block& block) {
    std::vector<model::Segment> segments;
    std::uint64_t end = 0;
    for (const model::Segment& segment : block.segments) {
        // A packed tensor is a source of its own, also behind plain bytes.
        const bool goes_on = !segments.empty() && segments.back().packed_bytes == 0 && segment.packed_bytes == 0 &&
                             segments.back().file == segment.file &&
                             segments.back().offset + segments.back().bytes == segment.offset;
        if (goes_on) {
            segments.back().bytes += segment.bytes;
        } else {
            segments.push_back(segment);
            segments.back().block_offset = end;
        }
        end += segment.bytes;
    }
    block.segments = std::move(segments);
    block.bytes = end;
}

const char* to_string(Order order) { return order == Order::forward ? "forward" : "forward-backward"; }

model::Model read_model(const ModelOptions& options) {
    model::ReadOptions read;
    if (options.max_header_bytes != 0) read.max_header_bytes = options.max_header_bytes;
    return model::read_model(options.model, read);
}

std::uint64_t budget_bytes(const ModelOptions& options, const model::Model& model) {
    if (!options.budget) return 0;
    const std::uint64_t bytes = options.budget->resolve(model.total_bytes);
    if (bytes == 0) {
        throw CommandError(ExitCode::usage,
                           fmt::format("--budget: {} is 0 bytes for this model; at least 1 byte is required",
                                       model::in_quotes(options.budget_text)));
    }
    return bytes;
}

namespace {

// A part of a packed tensor counts for its part of the packed bytes.
std::uint64_t packed_bytes(const model::Block& block) {
    std::uint64_t bytes = block.bytes;
    for (const model::Segment& segment : block.segments) {
        if (segment.packed_bytes != 0) {
            bytes -= segment.bytes;
            bytes += static_cast<std::uint64_t>(static_cast<double>(segment.bytes) *
                                                static_cast<double>(segment.packed_bytes) /
                                                static_cast<double>(segment.contents_bytes));
        }
    }
    return bytes;
}

}  // namespace

BlockTable group(model::Model model, const ModelOptions& options, std::uint64_t budget) {
    BlockTable table;
    table.model = std::move(model);
    model::GroupingOptions grouping;
    grouping.max_block_bytes =
        options.max_block_bytes != 0 ? options.max_block_bytes : model::max_block_for_budget(budget);
    grouping.unordered = options.unordered;
    table.blocks = model::group_blocks(table.model, grouping);
    for (model::Block& block : table.blocks) {
        close_gaps(block);
        table.block_bytes += block.bytes;
        table.packed_bytes += packed_bytes(block);
        table.unordered_blocks += block.unordered ? 1 : 0;
        table.unordered_bytes += block.unordered ? block.bytes : 0;
    }
    if (!options.unordered.empty() && table.unordered_blocks == 0) {
        throw CommandError(ExitCode::usage,
                           fmt::format("--unordered {}: no tensor of {} has a name that matches",
                                       model::in_quotes(options.unordered.front()), model_name(options.model)));
    }
    if (table.unordered_blocks > 0 && table.unordered_blocks == table.blocks.size()) {
        throw CommandError(
            ExitCode::usage,
            fmt::format("--unordered {}: all tensors of {} match, and no block is left that each step uses",
                        model::in_quotes(options.unordered.front()), model_name(options.model)));
    }
    return table;
}

ExpertNames expert_names(const model::Model& model) {
    ExpertNames found;
    for (const model::Tensor& tensor : model.tensors) {
        if (model::looks_like_expert(tensor.name)) {
            if (found.count++ == 0) found.first = model::printable(tensor.name);
        }
    }
    return found;
}

std::string experts_note(const BlockTable& table) {
    const ExpertNames experts = table.unordered_blocks > 0 ? ExpertNames() : expert_names(table.model);
    if (experts.count == 0) return {};
    return fmt::format(
        "Note: {} like an expert of a mixture ({}), but each step uses every block here.\n"
        "If a step uses only some experts, plan with --unordered '{}'.\n",
        experts.count == 1 ? "1 tensor has a name" : fmt::format("{} tensors have names", count_text(experts.count)),
        experts.first, experts.first.find("_exps") != std::string::npos ? "*_exps*" : "*.experts.*");
}

std::vector<StepUse> step_uses(const BlockTable& table, Order order, double compute_ms) {
    std::vector<StepUse> uses;
    const std::size_t count = table.blocks.size();
    const bool twice = order == Order::forward_backward;
    uses.reserve(twice ? 2 * count : count);
    const double ordered_bytes = static_cast<double>(table.block_bytes - table.unordered_bytes);
    const double ns_per_byte = compute_ms * 1e6 / std::max(ordered_bytes * (twice ? 2 : 1), 1.0);
    // Each share is the difference of two rounded sums, so that rounding errors do not add up.
    std::uint64_t bytes = 0;
    std::uint64_t spent_ns = 0;
    const auto add = [&](std::size_t block) {
        if (table.blocks[block].unordered) return;
        bytes += table.blocks[block].bytes;
        const auto until_ns = static_cast<std::uint64_t>(std::llround(static_cast<double>(bytes) * ns_per_byte));
        uses.push_back({block, until_ns - spent_ns});
        spent_ns = until_ns;
    };
    for (std::size_t i = 0; i < count; ++i) add(i);
    for (std::size_t i = twice ? count : 0; i > 0; --i) add(i - 1);
    return uses;
}

std::vector<sh_use> schedule(const std::vector<StepUse>& uses, const std::vector<sh_block>& blocks) {
    std::vector<sh_use> result;
    result.reserve(uses.size());
    for (const StepUse& use : uses) {
        sh_use entry = SH_USE_INIT;
        entry.block = blocks[use.block];
        entry.compute_ns = std::max<std::uint64_t>(use.compute_ns, 1);
        result.push_back(entry);
    }
    return result;
}

std::string model_name(const std::string& path) {
    std::filesystem::path name(path);
    if (!name.has_filename() || name.filename() == "." || name.filename() == "..") {
        std::error_code error;
        const auto whole = std::filesystem::canonical(name, error);
        name = error ? name : whole;
    }
    return model::printable(name.has_filename() ? name.filename().string() : path);
}

std::string description(const BlockTable& table) {
    return fmt::format("{}, {}, {} in {}", model::to_string(table.model.format),
                       counted(table.model.tensors.size(), "tensor"), model::format_bytes(table.model.total_bytes),
                       counted(table.blocks.size(), "block"));
}

}  // namespace stagehand::cli
