// Tables of element types, and the overflow-checked size of a tensor.
#include "element_type.h"

#include <algorithm>
#include <array>
#include <limits>

namespace stagehand::cli::model {

namespace {

constexpr std::array safetensors_types{
    ElementType{"BOOL", 1, 8},        ElementType{"F4", 1, 4},          ElementType{"F6_E2M3", 1, 6},
    ElementType{"F6_E3M2", 1, 6},     ElementType{"U8", 1, 8},          ElementType{"I8", 1, 8},
    ElementType{"F8_E5M2", 1, 8},     ElementType{"F8_E4M3", 1, 8},     ElementType{"F8_E8M0", 1, 8},
    ElementType{"F8_E4M3FNUZ", 1, 8}, ElementType{"F8_E5M2FNUZ", 1, 8}, ElementType{"I16", 1, 16},
    ElementType{"U16", 1, 16},        ElementType{"F16", 1, 16},        ElementType{"BF16", 1, 16},
    ElementType{"I32", 1, 32},        ElementType{"U32", 1, 32},        ElementType{"F32", 1, 32},
    ElementType{"C64", 1, 64},        ElementType{"F64", 1, 64},        ElementType{"I64", 1, 64},
    ElementType{"U64", 1, 64},
};

struct NumberedType {
    std::uint32_t number;
    ElementType type;
};

constexpr ElementType blocks(std::string_view name, std::uint32_t elements, std::uint32_t bytes) {
    return {name, elements, bytes * 8};
}

// Q8_1: two half-precision numbers and 32 bytes. Until 2024 the two numbers were in single precision: 40 bytes. The
// type is for intermediate products, and no converter stores it.
constexpr std::array gguf_types{
    NumberedType{0, blocks("F32", 1, 4)},         NumberedType{1, blocks("F16", 1, 2)},
    NumberedType{2, blocks("Q4_0", 32, 18)},      NumberedType{3, blocks("Q4_1", 32, 20)},
    NumberedType{6, blocks("Q5_0", 32, 22)},      NumberedType{7, blocks("Q5_1", 32, 24)},
    NumberedType{8, blocks("Q8_0", 32, 34)},      NumberedType{9, blocks("Q8_1", 32, 36)},
    NumberedType{10, blocks("Q2_K", 256, 84)},    NumberedType{11, blocks("Q3_K", 256, 110)},
    NumberedType{12, blocks("Q4_K", 256, 144)},   NumberedType{13, blocks("Q5_K", 256, 176)},
    NumberedType{14, blocks("Q6_K", 256, 210)},   NumberedType{15, blocks("Q8_K", 256, 292)},
    NumberedType{16, blocks("IQ2_XXS", 256, 66)}, NumberedType{17, blocks("IQ2_XS", 256, 74)},
    NumberedType{18, blocks("IQ3_XXS", 256, 98)}, NumberedType{19, blocks("IQ1_S", 256, 50)},
    NumberedType{20, blocks("IQ4_NL", 32, 18)},   NumberedType{21, blocks("IQ3_S", 256, 110)},
    NumberedType{22, blocks("IQ2_S", 256, 82)},   NumberedType{23, blocks("IQ4_XS", 256, 136)},
    NumberedType{24, blocks("I8", 1, 1)},         NumberedType{25, blocks("I16", 1, 2)},
    NumberedType{26, blocks("I32", 1, 4)},        NumberedType{27, blocks("I64", 1, 8)},
    NumberedType{28, blocks("F64", 1, 8)},        NumberedType{29, blocks("IQ1_M", 256, 56)},
    NumberedType{30, blocks("BF16", 1, 2)},       NumberedType{34, blocks("TQ1_0", 256, 54)},
    NumberedType{35, blocks("TQ2_0", 256, 66)},   NumberedType{39, blocks("MXFP4", 32, 17)},
    NumberedType{40, blocks("NVFP4", 64, 36)},    NumberedType{41, blocks("Q1_0", 128, 18)}};

struct RemovedType {
    std::uint32_t number;
    std::string_view name;
};

constexpr std::array removed_gguf_types{
    RemovedType{4, "Q4_2"},        RemovedType{5, "Q4_3"},        RemovedType{31, "Q4_0_4_4"},
    RemovedType{32, "Q4_0_4_8"},   RemovedType{33, "Q4_0_8_8"},   RemovedType{36, "IQ4_NL_4_4"},
    RemovedType{37, "IQ4_NL_4_8"}, RemovedType{38, "IQ4_NL_8_8"},
};

}  // namespace

const ElementType* safetensors_type(std::string_view name) {
    const auto* found = std::find_if(safetensors_types.begin(), safetensors_types.end(),
                                     [&](const ElementType& type) { return type.name == name; });
    return found == safetensors_types.end() ? nullptr : found;
}

const ElementType* gguf_type(std::uint32_t number) {
    const auto* found = std::find_if(gguf_types.begin(), gguf_types.end(),
                                     [&](const NumberedType& entry) { return entry.number == number; });
    return found == gguf_types.end() ? nullptr : &found->type;
}

std::string_view removed_gguf_type(std::uint32_t number) {
    const auto* found = std::find_if(removed_gguf_types.begin(), removed_gguf_types.end(),
                                     [&](const RemovedType& entry) { return entry.number == number; });
    return found == removed_gguf_types.end() ? std::string_view{} : found->name;
}

TensorSize tensor_size(const ElementType& type, std::span<const std::uint64_t> shape) {
    constexpr auto limit = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t elements = 1;
    for (const std::uint64_t dimension : shape) {
        if (dimension != 0 && elements > limit / dimension)
            return {0, "the number of elements does not fit in 64 bits"};
        elements *= dimension;
    }
    const std::uint64_t row = shape.empty() ? 1 : shape.back();
    if (row % type.block_elements != 0) return {0, "the innermost dimension is not a multiple of the type's block"};
    const std::uint64_t blocks = elements / type.block_elements;
    // Counted in bits only if a block is not a whole number of bytes, so that no size below 2^64 bytes is refused.
    const std::uint64_t units_a_byte = type.block_bits % 8 == 0 ? 1 : 8;
    const std::uint64_t block_units = type.block_bits * units_a_byte / 8;
    if (blocks > limit / block_units) return {0, "the size does not fit in 64 bits"};
    const std::uint64_t units = blocks * block_units;
    if (units % units_a_byte != 0) return {0, "the size is not a whole number of bytes"};
    return {units / units_a_byte, {}};
}

}  // namespace stagehand::cli::model
