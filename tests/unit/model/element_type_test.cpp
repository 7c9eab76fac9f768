// Sizes of tensors by type and shape.
#include "model/element_type.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>
#include <vector>

namespace stagehand::cli::model::test {

namespace {

std::uint64_t size_of(const ElementType* type, const std::vector<std::uint64_t>& shape) {
    EXPECT_NE(type, nullptr);
    const TensorSize size = tensor_size(*type, shape);
    EXPECT_EQ(size.problem, "") << type->name;
    return size.bytes;
}

TEST(ElementType, EverySafetensorsTypeHasItsBits) {
    const std::vector<std::pair<std::string, std::uint64_t>> bits{
        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"BOOL", 8},        {"U8", 8},   {"I8", 8},
        {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"I16", 16}, {"F8_E5M2FNUZ", 8},
        {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32}, {"F32", 32},
        {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
    };
    for (const auto& [name, width] : bits) {
        EXPECT_EQ(size_of(safetensors_type(name), {3, 8}), 3 * width) << name;
    }
    EXPECT_EQ(safetensors_type("F128"), nullptr);
    EXPECT_EQ(safetensors_type(""), nullptr);
}

TEST(ElementType, EveryGgufTypeHasItsBlock) {
    struct Row {
        std::uint32_t number;
        std::string name;
        std::uint64_t elements;
        std::uint64_t bytes;
    };
    const std::vector<Row> rows{
        {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
        {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},
        {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
        {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
        {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
        {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
        {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
        {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
        {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},
    };
    std::set<std::uint32_t> known;
    for (const Row& row : rows) {
        const ElementType* type = gguf_type(row.number);
        ASSERT_NE(type, nullptr) << row.number;
        EXPECT_EQ(type->name, row.name);
        EXPECT_EQ(size_of(type, {5, 2 * row.elements}), 10 * row.bytes) << row.name;
        known.insert(row.number);
    }
    for (std::uint32_t number = 0; number < 100; ++number) {
        EXPECT_EQ(gguf_type(number) != nullptr, known.count(number) == 1) << number;
        EXPECT_TRUE(gguf_type(number) == nullptr || removed_gguf_type(number).empty()) << number;
    }
    EXPECT_EQ(removed_gguf_type(31), "Q4_0_4_4");
}

TEST(ElementType, RefusesWhatHasNoSize) {
    const auto problem = [](const ElementType* type, const std::vector<std::uint64_t>& shape) {
        return std::string(tensor_size(*type, shape).problem);
    };
    const std::uint64_t two_to_32 = std::uint64_t{1} << 32;
    EXPECT_NE(problem(safetensors_type("U8"), {two_to_32, two_to_32}), "");
    EXPECT_EQ(problem(safetensors_type("U8"), {two_to_32, two_to_32 / 8}), "");
    EXPECT_NE(problem(safetensors_type("F64"), {two_to_32, two_to_32 / 8}), "");
    EXPECT_NE(problem(safetensors_type("F4"), {3, 3}), "");
    EXPECT_NE(problem(gguf_type(2), {32, 33}), "");
    EXPECT_NE(problem(gguf_type(2), {}), "");
    EXPECT_EQ(problem(gguf_type(2), {33, 32}), "");
    EXPECT_EQ(problem(gguf_type(0), {}), "");
}

}  // namespace

}  // namespace stagehand::cli::model::test
