// The meaning of a well-formed GGUF header.
#include "model/gguf.h"

#include <gtest/gtest.h>

#include <string>

#include "model/byte_source.h"
#include "model_files.h"

namespace stagehand::cli::model::test {

namespace {

constexpr std::uint32_t q4_k = 12;

TEST(Gguf, ReadsNamesTypesShapesAndPlaces) {
    Gguf gguf;
    gguf.text("general.architecture", "llama").integer("llama.block_count", Gguf::u32, 2, 4);
    gguf.tensor("token_embd.weight", {256, 3}, q4_k, 0).tensor("output_norm.weight", {5}, f32, 448);
    const std::string bytes = gguf.file(468);
    const Model model = read_gguf_bytes(bytes);
    EXPECT_EQ(model.format, Format::gguf);
    ASSERT_EQ(model.tensors.size(), 2U);
    EXPECT_EQ(model.total_bytes, 3 * 144U + 20);

    const std::uint64_t data = bytes.size() - 468;
    EXPECT_EQ(model.files[0].data_offset, data);
    const Tensor embedding = tensor_named(model, "token_embd.weight");
    EXPECT_EQ(embedding.dtype, "Q4_K");
    ASSERT_EQ(embedding.shape.size(), 2U);
    EXPECT_EQ(embedding.shape[0], 3U);  // rows first, unlike in the file
    EXPECT_EQ(embedding.shape[1], 256U);
    EXPECT_EQ(embedding.offset, data);
    EXPECT_EQ(embedding.bytes, 432U);
    EXPECT_EQ(tensor_named(model, "output_norm.weight").offset, data + 448);

    ASSERT_EQ(model.metadata.size(), 2U);
    EXPECT_EQ(model.metadata[0].first, "general.architecture");
    EXPECT_EQ(model.metadata[0].second, "llama");
    EXPECT_EQ(model.metadata[1].second, "2");
}

TEST(Gguf, ReadsVersionTwo) {
    Gguf gguf;
    gguf.version = 2;
    gguf.tensor("x", {8}, f32, 0);
    EXPECT_EQ(read_gguf_bytes(gguf.file(32)).total_bytes, 32U);
}

TEST(Gguf, SkipsValuesOfEveryType) {
    const std::string strings = little(Gguf::string, 4) + little(2, 8) + Gguf::text_value("a") + Gguf::text_value("");
    const std::string numbers = little(Gguf::f32, 4) + little(3, 8) + std::string(12, 'x');
    const std::string nested = little(Gguf::array, 4) + little(2, 8) + numbers + strings;
    Gguf gguf;
    gguf.integer("a", Gguf::u8, 1, 1).integer("b", Gguf::i8, 1, 1).integer("c", Gguf::u16, 1, 2);
    gguf.integer("d", Gguf::i16, 1, 2).integer("e", Gguf::u32, 1, 4).integer("f", Gguf::i32, 1, 4);
    gguf.integer("g", Gguf::f32, 1, 4).integer("h", Gguf::boolean, 1, 1).integer("i", Gguf::u64, 1, 8);
    gguf.integer("j", Gguf::i64, 1, 8).integer("k", Gguf::f64, 1, 8).text("l", "text");
    gguf.raw("m", Gguf::array, strings).raw("n", Gguf::array, numbers).raw("o", Gguf::array, nested);
    gguf.raw("p", Gguf::array, little(Gguf::u8, 4) + little(0, 8));
    gguf.tensor("x", {2}, f32, 0);
    EXPECT_EQ(read_gguf_bytes(gguf.file(8)).total_bytes, 8U);
}

TEST(Gguf, ObeysTheAlignmentThatTheFileSets) {
    Gguf gguf;
    gguf.integer("general.alignment", Gguf::u32, 4096, 4).tensor("a", {3}, f32, 0).tensor("b", {1}, f32, 4096);
    const std::string bytes = gguf.file(4100, 4096);
    const Model model = read_gguf_bytes(bytes);
    EXPECT_EQ(model.files[0].data_offset % 4096, 0U);
    EXPECT_EQ(model.tensors[1].offset, model.files[0].data_offset + 4096);
}

TEST(Gguf, TellsOfASplit) {
    Gguf gguf;
    gguf.integer("split.no", Gguf::u16, 1, 2).integer("split.count", Gguf::u16, 3, 2);
    const std::string bytes = gguf.file();
    MemorySource source("memory", bytes);
    Model model;
    const GgufSplit split = read_gguf(source, {}, model);
    EXPECT_EQ(split.number, 1U);
    EXPECT_EQ(split.count, 3U);
}

TEST(Gguf, HeaderMayBeAsLongAsTheLimit) {
    Gguf gguf;
    gguf.text("general.name", std::string(1000, 'n')).tensor("x", {1}, f32, 0);
    ReadOptions options;
    options.max_header_bytes = gguf.header().size();
    EXPECT_EQ(read_gguf_bytes(gguf.file(4), options).tensors.size(), 1U);
    options.max_header_bytes -= 1;
    const ModelError error = error_of([&] { read_gguf_bytes(gguf.file(4), options); });
    EXPECT_EQ(error.field(), "tensor 'x': offset");
    EXPECT_NE(error.message().find("limit on header bytes"), std::string::npos) << error.what();
}

TEST(Gguf, IsKnownByItsMagic) {
    MemorySource gguf("memory", "GGUF....");
    MemorySource other("memory", "GGML....");
    MemorySource tiny("memory", "GGU");
    EXPECT_TRUE(is_gguf(gguf));
    EXPECT_FALSE(is_gguf(other));
    EXPECT_FALSE(is_gguf(tiny));
}

}  // namespace

}  // namespace stagehand::cli::model::test
