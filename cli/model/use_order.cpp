// The names that the usual architectures give to their parts in checkpoints.
#include "use_order.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <unordered_map>
#include <utility>

namespace stagehand::cli::model {

namespace {

// The place of a part in a forward pass. The values are bytes of sort keys.
enum Stage : char {
    stage_embedding = 10,
    stage_input_norm = 12,
    stage_encoder = 20,
    stage_early_body = 25,
    stage_middle = 28,
    stage_body = 30,
    stage_late_body = 35,
    stage_final_norm = 40,
    stage_head = 45
};

using Words = std::unordered_map<std::string_view, Stage>;

Words words_of(std::initializer_list<std::pair<Stage, std::initializer_list<std::string_view>>> stages) {
    Words words;
    for (const auto& [stage, names] : stages)
        for (const std::string_view name : names) words.emplace(name, stage);
    return words;
}

// Whole components, in lower case.
const Words& whole_words() {
    static const Words words = words_of(
        {{stage_embedding, {"shared"}},
         {stage_encoder, {"cond_stage_model", "conditioner", "enc", "v"}},
         {stage_early_body, {"double_blocks", "down_blocks", "input_blocks", "joint_blocks"}},
         {stage_middle, {"mid_block", "middle_block", "mm", "mm_projector", "multi_modal_projector"}},
         {stage_late_body,
          {"dec", "decoder", "first_stage_model", "language_model", "output_blocks", "single_blocks",
           "single_transformer_blocks", "up_blocks", "vae"}},
         {stage_final_norm, {"ln_f"}},
         {stage_head, {"cls", "output", "output_layer", "output_projection", "text_projection", "visual_projection"}}});
    return words;
}

// Parts of components between underscores or hyphens, in lower case. If a component has several of them, the stage that
// comes first in `part_stages` counts.
const Words& part_words() {
    static const Words words = words_of({{stage_embedding,
                                          {"emb", "embd", "embed", "embedder", "embedders", "embedding", "embeddings",
                                           "freqs", "patch", "rope", "rotary", "stem", "token", "wpe", "wte"}},
                                         {stage_input_norm, {"pre"}},
                                         {stage_encoder, {"audio", "encoder", "image", "vision", "visual"}},
                                         {stage_middle, {"connector"}},
                                         {stage_late_body, {"decoder"}},
                                         {stage_final_norm, {"final", "layernorm", "ln", "norm"}},
                                         {stage_head,
                                          {"classifier", "head", "heads", "logit", "logits", "mtp", "outputs", "pooler",
                                           "predictions", "score", "unembed"}}});
    return words;
}

constexpr std::array part_stages{stage_embedding, stage_input_norm, stage_head,     stage_final_norm,
                                 stage_middle,    stage_encoder,    stage_late_body};

// No word of the vocabulary is longer.
constexpr std::size_t longest_word = 32;

Stage stage_of(std::string_view component) {
    std::array<char, 4 * longest_word> buffer{};
    const std::size_t size = std::min(component.size(), buffer.size());
    std::transform(component.begin(), component.begin() + static_cast<std::ptrdiff_t>(size), buffer.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    std::string_view rest(buffer.data(), size);
    if (const auto word = whole_words().find(rest); word != whole_words().end()) return word->second;
    std::uint64_t found = 0;
    while (true) {
        const std::size_t end = rest.find_first_of("_-");
        const std::string_view part = rest.substr(0, end);
        if (end == std::string_view::npos && (part == "out" || part == "in"))
            return part == "out" ? stage_head : stage_embedding;
        if (const auto word = part_words().find(part); word != part_words().end())
            found |= std::uint64_t{1} << word->second;
        if (end == std::string_view::npos) break;
        rest.remove_prefix(end + 1);
    }
    for (const Stage stage : part_stages)
        if ((found >> stage & 1) != 0) return stage;
    return stage_body;
}

// Appends text so that runs of digits sort by their value: the length of a run precedes it.
void append_natural(std::string& key, std::string_view text) {
    constexpr std::size_t longest_number = 255;
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    for (std::size_t at = 0; at < text.size();) {
        if (!is_digit(text[at])) {
            key += text[at++];
            continue;
        }
        std::size_t end = at;
        while (end < text.size() && is_digit(text[end])) ++end;
        while (at + 1 < end && text[at] == '0') ++at;
        key += '0';
        key += static_cast<char>(std::min(end - at, longest_number));
        key.append(text.substr(at, end - at));
        at = end;
    }
}

}  // namespace

std::string use_order_key(std::string_view dotted) {
    std::string key;
    key.reserve(dotted.size() + 16);
    while (true) {
        const std::size_t dot = dotted.find('.');
        const std::string_view component = dotted.substr(0, dot);
        key += static_cast<char>(stage_of(component));
        append_natural(key, component);
        key += '\0';
        if (dot == std::string_view::npos) return key;
        dotted.remove_prefix(dot + 1);
    }
}

}  // namespace stagehand::cli::model
