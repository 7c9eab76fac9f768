// The guessed order of a forward pass, on the part names of well-known architectures.
#include "model/use_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace stagehand::cli::model::test {

namespace {

using Strings = std::vector<std::string>;

// Expects that a sort by key gives `names` from any order.
void expect_order(const Strings& names) {
    Strings sorted = names;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    std::sort(sorted.begin(), sorted.end(),
              [](const std::string& a, const std::string& b) { return use_order_key(a) < use_order_key(b); });
    EXPECT_EQ(sorted, names);
}

TEST(UseOrder, LayersByNumber) {
    expect_order({"layers.0", "layers.1", "layers.2", "layers.10", "layers.11", "layers.100"});
    expect_order({"layers.9999999999999999999", "layers.10000000000000000000"});
    expect_order({"block9", "block10", "block10a"});
}

TEST(UseOrder, DecoderOnly) {
    expect_order({"model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "lm_head"});
    expect_order({"wpe", "wte", "h.0", "h.11", "ln_f"});
    expect_order({"gpt_neox.embed_in", "gpt_neox.layers.0", "gpt_neox.final_layer_norm", "embed_out"});
    expect_order({"tok_embeddings", "layers.0", "norm", "output"});
}

TEST(UseOrder, GgufNames) {
    expect_order({"rope_freqs", "token_embd", "blk.0", "blk.2", "blk.10", "output_norm", "output"});
    expect_order({"token_embd", "token_embd_norm", "blk.0"});
    expect_order({"enc.blk.0", "enc.output_norm", "dec.blk.0", "dec.output_norm"});
    expect_order({"v.patch_embd", "v.blk.0", "v.post_ln", "mm"});
}

TEST(UseOrder, AnyNameHasAKey) {
    for (const std::string name : {"", ".", "..", "a.", "-_-", "007", "\xff"}) {
        EXPECT_FALSE(use_order_key(name).empty()) << name;
    }
    EXPECT_EQ(use_order_key("LM_HEAD").front(), use_order_key("lm_head").front());
    EXPECT_GT(use_order_key("layers." + std::string(1000, '9')), use_order_key("layers.8"));
}

}  // namespace

}  // namespace stagehand::cli::model::test
