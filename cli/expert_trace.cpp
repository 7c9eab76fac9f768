#include "expert_trace.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "exit_code.h"
#include "json_lines.h"
#include "model/text.h"
#include "report/json_fields.h"
#include "units.h"

namespace stagehand::cli {

namespace {

std::size_t layer_in(const JsonFields& line, const ExpertTable& table) {
    if (line.find("layer") == nullptr) line.refuse("layer", "is missing");
    const std::uint64_t number = line.count("layer");
    const auto layer = std::ranges::find(table.layers, number, &ExpertLayer::number);
    if (layer == table.layers.end())
        line.refuse("layer", fmt::format("is {}, but the model has experts in {} from {} to {}", number,
                                         counted(table.layers.size(), "layer"), table.layers.front().number,
                                         table.layers.back().number));
    return static_cast<std::size_t>(layer - table.layers.begin());
}

ExpertCall call_in(const JsonFields& line, const ExpertTable& table) {
    ExpertCall call;
    call.layer = layer_in(line, table);
    const ExpertLayer& layer = table.layers[call.layer];
    for (const Json& item : line.list("experts")) {
        if (!item.is_number_unsigned() || item.get<std::uint64_t>() >= layer.experts) {
            std::string text = to_line(item);
            text.pop_back();  // its newline
            line.refuse("experts", fmt::format("has {}, but the experts of layer {} are 0 to {}",
                                               model::printable(text, 40), layer.number, layer.experts - 1));
        }
        const auto expert = item.get<std::uint32_t>();
        if (std::ranges::find(call.experts, expert) != call.experts.end())
            line.refuse("experts", fmt::format("has {} twice", expert));
        call.experts.push_back(expert);
    }
    if (call.experts.empty()) line.refuse("experts", "names no expert");
    return call;
}

}  // namespace

ExpertTrace read_expert_trace(const std::string& path, const ExpertTable& table) {
    ExpertTrace trace;
    const bool cut = read_json_lines(path, [&](const Json& json, const std::string& where) {
        ExpertCall call = call_in(JsonFields(json, where), table);
        if (trace.calls.empty() || trace.calls.back().layer >= call.layer) trace.tokens.push_back(trace.calls.size());
        trace.calls.push_back(std::move(call));
    });
    if (trace.calls.empty())
        throw CommandError(ExitCode::model, fmt::format("{} holds no call of a layer", model::printable(path)));
    if (cut)
        throw CommandError(ExitCode::model, fmt::format("{}: the last line is cut off, after {} calls",
                                                        model::printable(path), trace.calls.size()));
    return trace;
}

}  // namespace stagehand::cli
