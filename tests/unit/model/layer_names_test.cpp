// The layer or group that a tensor belongs to by its name.
#include "model/layer_names.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model_files.h"

namespace stagehand::cli::model::test {

namespace {

Model named(const std::vector<std::string>& names) {
    Model model;
    for (const std::string& name : names) {
        Tensor tensor;
        tensor.name = model.arena.copy(std::string_view(name));
        tensor.bytes = 1;
        model.tensors.push_back(tensor);
    }
    return model;
}

// The group of each tensor.
std::vector<std::string> groups_of(const std::vector<std::string>& names,
                                   const std::vector<std::string>& unordered = {}) {
    const Model model = named(names);
    const TensorGroups groups = group_tensors(model, unordered);
    std::vector<std::string> result;
    for (const std::uint32_t group : groups.group_of) {
        result.emplace_back((groups.unordered[group] ? "unordered " : "") + std::string(groups.names[group]));
    }
    return result;
}

using Strings = std::vector<std::string>;

TEST(LayerNames, FirstNumberNamesTheLayer) {
    EXPECT_EQ(layer_of("model.layers.7.mlp.up.weight"), "model.layers.7");
    EXPECT_EQ(layer_of("h.0.attn.bias"), "h.0");
    EXPECT_EQ(layer_of("blk.31.ffn_up.weight"), "blk.31");
    EXPECT_EQ(layer_of("encoder.block.3.layer.0.SelfAttention.q.weight"), "encoder.block.3");
    EXPECT_EQ(layer_of("model.layers.2.mlp.experts.63.w1"), "model.layers.2");
    EXPECT_EQ(layer_of("transformer_blocks.12.attn1.to_q.weight"), "transformer_blocks.12");
    EXPECT_EQ(layer_of("a.99999999999999999999999999.w"), "a.99999999999999999999999999");
}

TEST(LayerNames, OtherNamesHaveNoLayer) {
    for (const std::string name : {"lm_head.weight", "0.weight", "wte", "", ".", "...", "a.1", "model.layers.7",
                                   "model.layers.7x.weight", "a..w", "model.norm1.weight"}) {
        EXPECT_EQ(layer_of(name), "") << name;
    }
}

TEST(LayerNames, UnorderedTensorsHaveGroupsOfTheirOwn) {
    const Strings names = {"h.0.attn.w",           "h.0.mlp.experts.0.w1", "h.0.mlp.experts.0.w2",
                           "h.0.mlp.experts.1.w1", "h.1.mlp.experts.0.w1", "lm_head.weight"};
    EXPECT_EQ(groups_of(names), (Strings{"h.0", "h.0", "h.0", "h.0", "h.1", "lm_head"}));
    const Strings apart = {"h.0",
                           "unordered h.0.mlp.experts.0",
                           "unordered h.0.mlp.experts.0",
                           "unordered h.0.mlp.experts.1",
                           "unordered h.1.mlp.experts.0",
                           "lm_head"};
    EXPECT_EQ(groups_of(names, {"*.experts.*"}), apart);
    EXPECT_EQ(groups_of(names, {"h.?.mlp.experts"}), apart);
    EXPECT_EQ(groups_of(names, {"h.0.*.experts.*", "h.1.*"}), apart);
}

TEST(LayerNames, UnorderedTensorsNeverShareAGroupWithOthers) {
    // One tensor holds all experts of a layer, and has no number of its own.
    EXPECT_EQ(groups_of({"blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight", "blk.0.ffn_up_exps.scale"}, {"*_exps*"}),
              (Strings{"blk.0", "unordered blk.0.ffn_up_exps.weight", "unordered blk.0.ffn_up_exps.scale"}));
    EXPECT_EQ(groups_of({"blk.0.a.w", "blk.0.b.w", "blk.1.a.w"}, {"blk.0"}),
              (Strings{"unordered blk.0", "unordered blk.0", "blk.1"}));
    EXPECT_EQ(groups_of({"lm_head.weight", "lm_head.bias"}, {"lm_head.bias"}),
              (Strings{"lm_head", "unordered lm_head.bias"}));
}

TEST(LayerNames, MatchesPatterns) {
    for (const auto& [pattern, text] :
         std::vector<std::pair<const char*, const char*>>{{"*", ""},
                                                          {"*", "a.b"},
                                                          {"a*", "a"},
                                                          {"*a", "aba"},
                                                          {"*ab*c", "ababxc"},
                                                          {"a?c", "a.c"},
                                                          {"", ""},
                                                          {"**", "x"},
                                                          {"*.experts.*", "l.0.experts.1.w"}}) {
        EXPECT_TRUE(matches_glob(pattern, text)) << pattern << " " << text;
    }
    for (const auto& [pattern, text] : std::vector<std::pair<const char*, const char*>>{
             {"", "a"}, {"a", "ab"}, {"a?", "a"}, {"*a", "ab"}, {"?", ""}, {"*.experts.*", "l.0.shared_experts.w"}}) {
        EXPECT_FALSE(matches_glob(pattern, text)) << pattern << " " << text;
    }
}

TEST(LayerNames, KnowsTheNamesOfExperts) {
    for (const char* const name : {"model.layers.0.mlp.experts.17.up_proj.weight", "blk.3.ffn_gate_exps.weight",
                                   "h.0.block_sparse_moe.experts.0.w1", "l.0.mlp.experts.gate_up_proj"}) {
        EXPECT_TRUE(looks_like_expert(name)) << name;
    }
    for (const char* const name : {"model.layers.0.mlp.shared_experts.up_proj.weight", "blk.3.ffn_gate_shexp.weight",
                                   "model.layers.0.mlp.gate.weight", "expertise.weight", ""}) {
        EXPECT_FALSE(looks_like_expert(name)) << name;
    }
}

TEST(LayerNames, TheRestGoesWithItsSiblings) {
    EXPECT_EQ(
        groups_of({"model.embed_tokens.weight", "model.layers.0.q.weight", "model.norm.weight", "lm_head.weight"}),
        (Strings{"model.embed_tokens", "model.layers.0", "model.norm", "lm_head"}));
    EXPECT_EQ(groups_of({"bert.embeddings.word_embeddings.weight", "bert.embeddings.LayerNorm.bias",
                         "bert.encoder.layer.0.q", "bert.encoder.extra.w", "bert.pooler.dense.weight",
                         "cls.predictions.bias", "cls.predictions.transform.dense.weight"}),
              (Strings{"bert.embeddings", "bert.embeddings", "bert.encoder.layer.0", "bert.encoder.extra",
                       "bert.pooler", "cls", "cls"}));
    EXPECT_EQ(groups_of({"wte.weight", "wpe.weight", "h.0.w", "ln_f.weight", "ln_f.bias"}),
              (Strings{"wte", "wpe", "h.0", "ln_f", "ln_f"}));
    EXPECT_EQ(groups_of({"class_embedding", "vision.class_embedding", "vision.layers.0.w"}),
              (Strings{"class_embedding", "vision.class_embedding", "vision.layers.0"}));
}

}  // namespace

}  // namespace stagehand::cli::model::test
