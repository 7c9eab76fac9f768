// The names that the usual architectures give to their parts in checkpoints.
#include "use_order.h"

#include <algorithm>
#include <array>
#include <cstdint>

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
    stage_head = 45,
};

struct Word {
    std::string_view text;
    Stage stage;
};

// Whole components, in lower case, sorted by text.
constexpr std::array whole_words{
    Word{"cls", stage_head},
    Word{"cond_stage_model", stage_encoder},
    Word{"conditioner", stage_encoder},
    Word{"dec", stage_late_body},
    Word{"decoder", stage_late_body},
    Word{"double_blocks", stage_early_body},
    Word{"down_blocks", stage_early_body},
    Word{"enc", stage_encoder},
    Word{"first_stage_model", stage_late_body},
    Word{"input_blocks", stage_early_body},
    Word{"joint_blocks", stage_early_body},
    Word{"language_model", stage_late_body},
    Word{"ln_f", stage_final_norm},
    Word{"mid_block", stage_middle},
    Word{"middle_block", stage_middle},
    Word{"mm", stage_middle},
    Word{"mm_projector", stage_middle},
    Word{"multi_modal_projector", stage_middle},
    Word{"output", stage_head},
    Word{"output_blocks", stage_late_body},
    Word{"output_layer", stage_head},
    Word{"output_projection", stage_head},
    Word{"shared", stage_embedding},
    Word{"single_blocks", stage_late_body},
    Word{"single_transformer_blocks", stage_late_body},
    Word{"text_projection", stage_head},
    Word{"up_blocks", stage_late_body},
    Word{"v", stage_encoder},
    Word{"vae", stage_late_body},
    Word{"visual_projection", stage_head},
};

// Parts of components between underscores or hyphens, in lower case, sorted by text. If a component has several of
// them, the stage that comes first in `part_stages` counts.
constexpr std::array part_words{
    Word{"audio", stage_encoder},
    Word{"classifier", stage_head},
    Word{"connector", stage_middle},
    Word{"decoder", stage_late_body},
    Word{"emb", stage_embedding},
    Word{"embd", stage_embedding},
    Word{"embed", stage_embedding},
    Word{"embedder", stage_embedding},
    Word{"embedders", stage_embedding},
    Word{"embedding", stage_embedding},
    Word{"embeddings", stage_embedding},
    Word{"encoder", stage_encoder},
    Word{"final", stage_final_norm},
    Word{"freqs", stage_embedding},
    Word{"head", stage_head},
    Word{"heads", stage_head},
    Word{"image", stage_encoder},
    Word{"layernorm", stage_final_norm},
    Word{"ln", stage_final_norm},
    Word{"logit", stage_head},
    Word{"logits", stage_head},
    Word{"mtp", stage_head},
    Word{"norm", stage_final_norm},
    Word{"outputs", stage_head},
    Word{"patch", stage_embedding},
    Word{"pooler", stage_head},
    Word{"pre", stage_input_norm},
    Word{"predictions", stage_head},
    Word{"rope", stage_embedding},
    Word{"rotary", stage_embedding},
    Word{"score", stage_head},
    Word{"stem", stage_embedding},
    Word{"token", stage_embedding},
    Word{"unembed", stage_head},
    Word{"vision", stage_encoder},
    Word{"visual", stage_encoder},
    Word{"wpe", stage_embedding},
    Word{"wte", stage_embedding},
};

constexpr std::array part_stages{stage_embedding, stage_input_norm, stage_head,     stage_final_norm,
                                 stage_middle,    stage_encoder,    stage_late_body};

template <std::size_t n>
constexpr bool is_sorted_by_text(const std::array<Word, n>& words) {
    return std::is_sorted(words.begin(), words.end(), [](const Word& a, const Word& b) { return a.text < b.text; });
}
static_assert(is_sorted_by_text(whole_words) && is_sorted_by_text(part_words));

template <std::size_t n>
const Word* find_word(const std::array<Word, n>& words, std::string_view text) {
    const auto at = std::lower_bound(words.begin(), words.end(), text,
                                     [](const Word& word, std::string_view wanted) { return word.text < wanted; });
    return at != words.end() && at->text == text ? &*at : nullptr;
}

// No word of the vocabulary is longer.
constexpr std::size_t longest_word = 32;

Stage stage_of(std::string_view component) {
    std::array<char, 4 * longest_word> buffer{};
    const std::size_t size = std::min(component.size(), buffer.size());
    std::transform(component.begin(), component.begin() + static_cast<std::ptrdiff_t>(size), buffer.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    std::string_view rest(buffer.data(), size);
    if (const Word* word = find_word(whole_words, rest)) return word->stage;
    std::uint64_t found = 0;
    while (true) {
        const std::size_t end = rest.find_first_of("_-");
        const std::string_view part = rest.substr(0, end);
        if (end == std::string_view::npos && (part == "out" || part == "in"))
            return part == "out" ? stage_head : stage_embedding;
        if (const Word* word = find_word(part_words, part)) found |= std::uint64_t{1} << word->stage;
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
