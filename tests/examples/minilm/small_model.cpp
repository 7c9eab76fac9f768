// A small model of the example's kind, with random weights.
#include "small_model.h"

#include <cstring>
#include <random>

#include <nlohmann/json.hpp>

namespace {

std::string make_vocabulary(int lines) {
    std::string text = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (int i = 5; i < lines; ++i) text += "w" + std::to_string(i) + "\n";
    return text;
}

}  // namespace

SmallModel::SmallModel() {
    const auto rows = static_cast<std::uint64_t>(hidden);
    const auto middle = static_cast<std::uint64_t>(intermediate);
    shapes["embeddings.word_embeddings.weight"] = {static_cast<std::uint64_t>(vocabulary), rows};
    shapes["embeddings.position_embeddings.weight"] = {static_cast<std::uint64_t>(positions), rows};
    shapes["embeddings.token_type_embeddings.weight"] = {2, rows};
    shapes["embeddings.LayerNorm.weight"] = {rows};
    shapes["embeddings.LayerNorm.bias"] = {rows};
    for (int layer = 0; layer < layers; ++layer) {
        const std::string prefix = "encoder.layer." + std::to_string(layer) + ".";
        for (const char* name :
             {"attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"}) {
            shapes[prefix + name + ".weight"] = {rows, rows};
            shapes[prefix + name + ".bias"] = {rows};
        }
        shapes[prefix + "intermediate.dense.weight"] = {middle, rows};
        shapes[prefix + "intermediate.dense.bias"] = {middle};
        shapes[prefix + "output.dense.weight"] = {rows, middle};
        shapes[prefix + "output.dense.bias"] = {rows};
        for (const char* name : {"attention.output.LayerNorm", "output.LayerNorm"}) {
            shapes[prefix + name + ".weight"] = {rows};
            shapes[prefix + name + ".bias"] = {rows};
        }
    }
}

void SmallModel::write(const ScratchFolder& folder) const {
    folder.write("config.json", nlohmann::json{{"model_type", "bert"},
                                               {"hidden_act", "gelu"},
                                               {"position_embedding_type", "absolute"},
                                               {"num_hidden_layers", layers},
                                               {"hidden_size", hidden},
                                               {"num_attention_heads", heads},
                                               {"intermediate_size", intermediate},
                                               {"vocab_size", vocabulary},
                                               {"max_position_embeddings", positions},
                                               {"type_vocab_size", 2},
                                               {"layer_norm_eps", 1e-12}}
                                    .dump());
    folder.write("sentence_bert_config.json", R"({"max_seq_length": 48})");
    folder.write("1_Pooling/config.json", R"({"pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true})");
    folder.write("modules.json", R"([{"type": "x.Transformer"}, {"type": "x.Pooling"}, {"type": "x.Normalize"}])");
    folder.write("vocab.txt", make_vocabulary(vocabulary));
    folder.write("model.safetensors", make_safetensors(shapes));
}

std::string make_safetensors(const std::map<std::string, std::vector<std::uint64_t>>& shapes) {
    std::mt19937 random(6);
    nlohmann::json header;
    std::string data;
    for (const auto& [name, shape] : shapes) {
        std::uint64_t count = 1;
        for (const std::uint64_t size : shape) count *= size;
        const std::uint64_t begin = data.size();
        for (std::uint64_t i = 0; i < count; ++i) {
            const float value = static_cast<float>(random() % 2001) / 5000.0F - 0.2F;
            char bytes[sizeof value];
            std::memcpy(bytes, &value, sizeof value);
            data.append(bytes, sizeof value);
        }
        header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
    }
    const std::string text = header.dump();
    std::string file;
    for (int shift = 0; shift < 64; shift += 8) file += static_cast<char>(text.size() >> shift & 0xff);
    return file + text + data;
}
