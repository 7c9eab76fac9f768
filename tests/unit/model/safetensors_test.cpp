// The meaning of a well-formed safetensors header.
#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <string>

#include "model/byte_source.h"
#include "model_files.h"

namespace stagehand::cli::model::test {

namespace {

TEST(Safetensors, ReadsNamesTypesShapesAndPlaces) {
    const std::string header = "{" + entry("a", "F32", "[2,3]", 0, 24) + "," + entry("b.c", "BF16", "[]", 24, 26) +
                               "," + entry("d", "I64", "[1]", 26, 34) + "}";
    const Model model = read_safetensors_bytes(safetensors(header, 34));
    ASSERT_EQ(model.tensors.size(), 3U);
    EXPECT_EQ(model.format, Format::safetensors);
    EXPECT_EQ(model.total_bytes, 34U);
    ASSERT_EQ(model.files.size(), 1U);
    EXPECT_EQ(model.files[0].path, "memory");
    EXPECT_EQ(model.files[0].bytes, 8 + header.size() + 34);
    EXPECT_EQ(model.files[0].data_offset, 8 + header.size());

    const Tensor a = tensor_named(model, "a");
    EXPECT_EQ(a.dtype, "F32");
    ASSERT_EQ(a.shape.size(), 2U);
    EXPECT_EQ(a.shape[0], 2U);
    EXPECT_EQ(a.shape[1], 3U);
    EXPECT_EQ(a.offset, 8 + header.size());
    EXPECT_EQ(a.bytes, 24U);
    const Tensor scalar = tensor_named(model, "b.c");
    EXPECT_TRUE(scalar.shape.empty());
    EXPECT_EQ(scalar.bytes, 2U);
    EXPECT_EQ(tensor_named(model, "d").offset, 8 + header.size() + 26);
}

TEST(Safetensors, NamesMayBeAnyUtf8) {
    const std::string header =
        "{" + entry("gewichte.\xc3\xbc.\\u4f60\\n", "U8", "[1]", 0, 1) + "," + entry("", "U8", "[1]", 1, 2) + "}";
    const Model model = read_safetensors_bytes(safetensors(header, 2));
    EXPECT_EQ(model.tensors[0].name, "gewichte.\xc3\xbc.\xe4\xbd\xa0\n");
    EXPECT_EQ(model.tensors[1].name, "");
}

TEST(Safetensors, ReadsAHundredThousandTensorsAndKeepsThemWhenMoved) {
    constexpr std::size_t count = 100'000;
    std::string header = "{";
    for (std::size_t i = 0; i < count; ++i) {
        header += (i == 0 ? "" : ",") + entry("model.layers." + std::to_string(i), "U8", "[2]", 2 * i, 2 * i + 2);
    }
    const std::string bytes = safetensors(header + "}", 2 * count);
    Model first = read_safetensors_bytes(bytes);
    const Model model = std::move(first);
    ASSERT_EQ(model.tensors.size(), count);
    EXPECT_EQ(model.total_bytes, 2 * count);
    for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(model.tensors[i].name, "model.layers." + std::to_string(i));
        ASSERT_EQ(model.tensors[i].shape[0], 2U);
    }
}

TEST(Safetensors, HeaderMayBeAsLongAsTheLimit) {
    const std::string header = "{" + entry("a", "U8", "[3]", 0, 3) + "}";
    ReadOptions options;
    options.max_header_bytes = header.size();
    EXPECT_EQ(read_safetensors_bytes(safetensors(header, 3), options).tensors.size(), 1U);
    options.max_header_bytes = header.size() - 1;
    const ModelError error = error_of([&] { read_safetensors_bytes(safetensors(header, 3), options); });
    EXPECT_EQ(error.field(), "header length");
    EXPECT_NE(error.message().find("limit on header bytes"), std::string::npos) << error.what();
}

}  // namespace

}  // namespace stagehand::cli::model::test
