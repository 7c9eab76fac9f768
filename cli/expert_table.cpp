#include "expert_table.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/number.h"
#include "exit_code.h"
#include "model/checks.h"
#include "model/error.h"
#include "model/layer_names.h"
#include "model/text.h"

namespace stagehand::cli {

namespace {

// More experts than this in a layer are no experts.
constexpr std::uint64_t most_experts = 65536;

// A tensor of experts, with the layer that its name has.
struct ExpertTensor {
    std::size_t tensor = 0;               // in Model::tensors
    std::optional<std::uint64_t> expert;  // nothing: it holds those of the whole layer
};

// The number behind "experts." in the name.
std::optional<std::uint64_t> expert_of(std::string_view name) {
    constexpr std::string_view list = "experts.";
    const std::size_t at = name.rfind(list);
    if (at == std::string_view::npos || (at > 0 && name[at - 1] != '.')) return std::nullopt;
    const std::string_view rest = name.substr(at + list.size());
    return read_number<std::uint64_t>(rest.substr(0, rest.find('.')));
}

[[noreturn]] void refuse_tensor(const model::Model& model, const model::Tensor& tensor, const std::string& why) {
    throw model::ModelError(model.files[tensor.file].path, model::tensor_field(tensor.name), why);
}

void append(model::Block& block, const model::Tensor& tensor, std::uint64_t begin, std::uint64_t bytes) {
    if (tensor.packed_bytes != 0)
        block.segments.push_back(
            {tensor.file, tensor.offset, bytes, block.bytes, tensor.packed_bytes, begin, tensor.bytes});
    else
        block.segments.push_back({tensor.file, tensor.offset + begin, bytes, block.bytes, 0, 0, 0});
    block.bytes += bytes;
}

// How many experts the tensors of a layer are of.
std::uint64_t count_experts(const model::Model& model, const std::vector<ExpertTensor>& tensors) {
    std::uint64_t count = 0, largest = 0;
    for (const ExpertTensor& part : tensors) {
        const model::Tensor& tensor = model.tensors[part.tensor];
        if (part.expert && *part.expert >= most_experts) refuse_tensor(model, tensor, "is of an expert beyond 65535");
        if (part.expert) {
            count = std::max(count, *part.expert + 1);
        } else if (!tensor.shape.empty() && tensor.bytes > largest) {
            count = std::max(count, tensor.shape.front());
            largest = tensor.bytes;
        }
    }
    return count;
}

// Adds the layer's experts to the table. Returns the tensors that they are made of: tensors of another number of
// experts, such as a scale for all, stay with the layer.
std::vector<std::size_t> add_layer(const model::Model& model, ExpertLayer layer,
                                   const std::vector<ExpertTensor>& tensors, ExpertTable& table) {
    const std::uint64_t count = count_experts(model, tensors);
    if (count == 0 || count > most_experts)
        refuse_tensor(model, model.tensors[tensors.front().tensor],
                      fmt::format("seems to be of {} experts; at most {} are expected", count, most_experts));
    layer.first = table.blocks.size();
    layer.experts = static_cast<std::uint32_t>(count);
    table.blocks.resize(layer.first + count);
    const std::span<model::Block> experts = std::span(table.blocks).subspan(layer.first);
    std::vector<std::size_t> taken;
    for (const ExpertTensor& part : tensors) {
        const model::Tensor& tensor = model.tensors[part.tensor];
        if (part.expert) {
            append(experts[*part.expert], tensor, 0, tensor.bytes);
        } else if (!tensor.shape.empty() && tensor.shape.front() == count && tensor.bytes % count == 0) {
            const std::uint64_t bytes = tensor.bytes / count;
            for (std::uint64_t i = 0; i < count; ++i) append(experts[i], tensor, i * bytes, bytes);
        } else {
            continue;
        }
        taken.push_back(part.tensor);
    }
    layer.bytes = experts.front().bytes;
    for (std::size_t i = 0; i < experts.size(); ++i) {
        if (experts[i].bytes == 0 || experts[i].bytes != layer.bytes)
            refuse_tensor(
                model, model.tensors[tensors.front().tensor],
                fmt::format("expert {} of {} has {} bytes, but expert 0 has {}: those of a layer must be alike", i,
                            model::printable(layer.name), experts[i].bytes, layer.bytes));
        close_gaps(experts[i]);
        experts[i].name = fmt::format("{} expert {}", model::printable(layer.name), i);
        table.bytes += layer.bytes;
    }
    table.layers.push_back(std::move(layer));
    return taken;
}

}  // namespace

ExpertTable read_experts(const ModelOptions& options, std::uint64_t budget) {
    model::Model model = read_model(options);
    const std::string name = model_name(options.model);
    std::map<std::uint64_t, std::pair<std::string_view, std::vector<ExpertTensor>>> found;
    for (std::size_t i = 0; i < model.tensors.size(); ++i) {
        const model::Tensor& tensor = model.tensors[i];
        const std::string_view layer = model::layer_of(tensor.name);
        if (layer.empty() || tensor.bytes == 0 || !model::looks_like_expert(tensor.name)) continue;
        const auto number = read_number<std::uint64_t>(layer.substr(layer.rfind('.') + 1));
        if (!number) refuse_tensor(model, tensor, "is of a layer whose number does not fit in 64 bits");
        auto& [layer_name, tensors] = found[*number];
        if (tensors.empty()) layer_name = layer;
        if (layer_name != layer)
            refuse_tensor(
                model, tensor,
                fmt::format("is an expert's, as those of {} are: a trace could not tell which layer {} it means",
                            model::in_quotes(layer_name), *number));
        tensors.push_back({i, expert_of(tensor.name)});
    }
    if (found.empty())
        throw CommandError(ExitCode::usage,
                           fmt::format("--experts: no layer of {} has tensors of experts by name", name));
    ExpertTable table;
    std::vector<bool> taken(model.tensors.size());
    for (const auto& [number, layer] : found)
        for (const std::size_t tensor :
             add_layer(model, {number, std::string(layer.first), 0, 0, 0}, layer.second, table))
            taken[tensor] = true;
    std::vector<model::Tensor> rest;
    for (std::size_t i = 0; i < taken.size(); ++i)
        if (!taken[i]) rest.push_back(model.tensors[i]);
    model.tensors = std::move(rest);
    model.total_bytes -= table.bytes;
    if (model.total_bytes == 0)
        throw CommandError(ExitCode::usage, fmt::format("--experts: {} has nothing but experts", name));
    table.rest = group(std::move(model), options, budget);
    return table;
}

}  // namespace stagehand::cli
