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

TEST(Safetensors, OrderInTheHeaderNeedNotBeThatOfTheData) {
    const std::string header = "{" + entry("late", "U8", "[4]", 4, 8) + "," + entry("early", "U8", "[4]", 0, 4) + "}";
    const Model model = read_safetensors_bytes(safetensors(header, 8));
    EXPECT_EQ(model.tensors[0].name, "late");
    EXPECT_GT(model.tensors[0].offset, model.tensors[1].offset);
}

TEST(Safetensors, TakesEmptyTensorsPaddingAndMetadata) {
    const std::string header = R"({"__metadata__":{"format":"pt","note":"x"},)" + entry("none", "F32", "[0,5]", 0, 0) +
                               "," + entry("some", "F4", "[2,3]", 0, 3) + "," + entry("last", "F16", "[0]", 3, 3) +
                               "}     ";
    const Model model = read_safetensors_bytes(safetensors(header, 3));
    EXPECT_EQ(model.tensors.size(), 3U);
    EXPECT_EQ(model.total_bytes, 3U);
    ASSERT_EQ(model.metadata.size(), 2U);
    EXPECT_EQ(model.metadata[0].first, "format");
    EXPECT_EQ(model.metadata[0].second, "pt");
}

TEST(Safetensors, MetadataMayBeNullAndIsKeptOnlyInPart) {
    EXPECT_TRUE(read_safetensors_bytes(safetensors(R"({"__metadata__":null})")).metadata.empty());
    std::string header = R"({"__metadata__":{)";
    for (int i = 0; i < 100; ++i) {
        header += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":\"" + std::string(5000, 'v') + "\"";
    }
    const Model model = read_safetensors_bytes(safetensors(header + "}}"));
    EXPECT_EQ(model.metadata.size(), Model::metadata_entries);
    EXPECT_LE(model.metadata[0].second.size(), 300U);
}

TEST(Safetensors, SkipsMembersItDoesNotKnow) {
    const std::string header =
        R"({"x":{"extra":[1,{"dtype":[[]],"deep":{"shape":null}}],"dtype":"U8","more":-1.5,"shape":[2],)"
        R"("data_offsets":[0,2],"last":{}}})";
    const Model model = read_safetensors_bytes(safetensors(header, 2));
    ASSERT_EQ(model.tensors.size(), 1U);
    EXPECT_EQ(model.tensors[0].bytes, 2U);
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

TEST(Safetensors, AddsAFileToWhatTheModelHas) {
    const std::string one = safetensors("{" + entry("a", "U8", "[3]", 0, 3) + "}", 3);
    const std::string two = safetensors("{" + entry("b", "U8", "[5]", 0, 5) + "}", 5);
    Model model;
    MemorySource first("one", one);
    MemorySource second("two", two);
    read_safetensors(first, {}, model);
    read_safetensors(second, {}, model);
    ASSERT_EQ(model.files.size(), 2U);
    EXPECT_EQ(tensor_named(model, "b").file, 1U);
    EXPECT_EQ(model.total_bytes, 8U);
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
