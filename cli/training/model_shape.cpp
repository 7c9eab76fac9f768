#include "model_shape.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "exit_code.h"
#include "model/layer_names.h"
#include "model/text.h"

namespace stagehand::cli::training {

namespace {

std::uint64_t elements(const model::Tensor& tensor) {
    std::uint64_t count = 1;
    for (const std::uint64_t size : tensor.shape) count *= size;
    return count;
}

// The tensors of one layer, by their names without the layer's and without ".weight".
using Parts = std::map<std::string, std::uint64_t, std::less<>>;

// The elements of the first part whose name ends with one of these.
std::uint64_t size_of(const Parts& parts, std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) {
        for (const auto& [part, count] : parts)
            if (part == name || part.ends_with("." + std::string(name))) return count;
    }
    return 0;
}

[[noreturn]] void unknown(std::string_view layer, const char* what) {
    throw CommandError(ExitCode::model,
                       fmt::format("the layers, such as {}, have no tensor that is {}; give the sizes of the "
                                   "transformer with --layers, --hidden-size and so on, without MODEL",
                                   layer.empty() ? "none" : model::printable(layer), what));
}

std::string without_weight(std::string_view name) {
    return std::string(name.ends_with(".weight") ? name.substr(0, name.size() - 7) : name);
}

// What the tensors of a model tell: of one layer, and outside of layers.
struct ModelParts {
    std::set<std::string_view> layers;
    std::string_view first;  // layer, whose tensors stand for those of all
    Parts parts;
    Parts outside;
    std::uint64_t hidden = 0;
};

// Whether it is a norm over the width of a layer, and not over that of a head.
bool is_norm(const model::Tensor& tensor, std::string_view part) {
    const auto has = [&](std::string_view text) { return part.find(text) != std::string_view::npos; };
    return tensor.shape.size() == 1 && (has("norm") || has("ln_")) && !has("bias") && !has("q_norm") && !has("k_norm");
}

ModelParts read_parts(const model::Model& model) {
    ModelParts all;
    for (const model::Tensor& tensor : model.tensors) {
        const std::string_view layer = model::layer_of(tensor.name);
        if (model::looks_like_expert(tensor.name)) {
            throw CommandError(ExitCode::model, fmt::format("{} is an expert's; a plan for training counts only layers "
                                                            "that every token uses",
                                                            model::printable(tensor.name)));
        }
        if (layer.empty()) {
            all.outside.emplace(without_weight(tensor.name), elements(tensor));
            continue;
        }
        all.first = all.first.empty() ? layer : all.first;
        if (model::family_of(layer) == model::family_of(all.first)) all.layers.insert(layer);
        if (layer != all.first) continue;
        const std::string part = without_weight(tensor.name.substr(std::min(layer.size() + 1, tensor.name.size())));
        if (all.hidden == 0 && is_norm(tensor, part)) all.hidden = tensor.shape[0];
        if (tensor.shape.size() >= 2) all.parts.emplace(part, elements(tensor));
    }
    return all;
}

}  // namespace

Shape shape_of(const model::Model& model, std::uint64_t heads) {
    const ModelParts all = read_parts(model);
    const Parts& parts = all.parts;
    const std::uint64_t hidden = all.hidden;
    if (hidden == 0) unknown(all.first, "a norm over the layer's width");
    Shape shape;
    shape.layers = all.layers.size();
    shape.hidden = hidden;
    const std::uint64_t output = size_of(parts, {"o_proj", "out_proj", "attn_output", "wo", "attn.c_proj"}) / hidden;
    std::uint64_t queries = size_of(parts, {"q_proj", "attn_q", "wq"}) / hidden;
    std::uint64_t keys = size_of(parts, {"k_proj", "attn_k", "wk"}) / hidden;
    if (queries == 0) {
        const std::uint64_t all =
            size_of(parts, {"qkv_proj", "attn_qkv", "query_key_value", "Wqkv", "c_attn"}) / hidden;
        queries = output != 0 ? output : all / 3;
        keys = (all - std::min(all, queries)) / 2;
    }
    if (queries == 0 || keys == 0)
        unknown(all.first, "the attention's queries and keys (q_proj, attn_q, qkv_proj, c_attn)");
    const std::uint64_t gate = size_of(parts, {"gate_proj", "ffn_gate", "w1"}) / hidden;
    const std::uint64_t both = size_of(parts, {"gate_up_proj"}) / hidden;
    shape.intermediate =
        both != 0 ? both / 2 : size_of(parts, {"up_proj", "ffn_up", "w3", "fc1", "c_fc", "dense_h_to_4h"}) / hidden;
    shape.gated = gate != 0 || both != 0;
    if (shape.intermediate == 0) unknown(all.first, "the MLP's first matrix (up_proj, ffn_up, fc1, c_fc)");
    shape.vocabulary = size_of(all.outside, {"embed_tokens", "token_embd", "wte", "tok_embeddings"}) / hidden;
    shape.head_width = heads != 0 ? queries / heads : keys % 128 == 0 ? 128 : 64;
    if (shape.head_width == 0 || queries % shape.head_width != 0 || keys % shape.head_width != 0 ||
        (heads != 0 && queries % heads != 0)) {
        throw CommandError(ExitCode::usage,
                           fmt::format("--heads: the attention's {} queries and {} keys a token cannot be divided into "
                                       "such heads",
                                       queries, keys));
    }
    shape.heads = queries / shape.head_width;
    shape.kv_heads = keys / shape.head_width;
    return shape;
}

}  // namespace stagehand::cli::training
