// Bad GGUF files: each is an error that names the file and the field.
#include <gtest/gtest.h>

#include <string>

#include "model/gguf.h"
#include "model_files.h"

namespace stagehand::cli::model::test {

namespace {

constexpr std::uint32_t q4_0 = 2;
constexpr std::uint64_t two_to_60 = std::uint64_t{1} << 60;

class BadGguf : public testing::TestWithParam<BadInput> {};

TEST_P(BadGguf, IsAnErrorThatNamesFileAndField) {
    const BadInput& input = GetParam();
    const ModelError error = error_of([&] { read_gguf_bytes(input.bytes); });
    EXPECT_EQ(error.file(), "memory");
    EXPECT_EQ(error.field(), input.field) << error.what();
    EXPECT_NE(error.message().find(input.message), std::string::npos) << error.what();
}

std::string versioned(std::uint32_t version) {
    Gguf gguf;
    gguf.version = version;
    return gguf.file();
}

std::vector<BadInput> preambles() {
    Gguf magic;
    magic.magic = "GGML";
    Gguf tensors;
    tensors.extra_tensors = two_to_60;
    Gguf all_tensors;
    all_tensors.extra_tensors = max64;
    Gguf metadata;
    metadata.extra_metadata = two_to_60;
    Gguf one_more;
    one_more.extra_tensors = 1;
    one_more.tensor("x", {4}, f32, 0);
    return {
        {"Empty", "", "file", "is empty"},
        {"OnlyHalfAMagic", "GG", "magic", "the file has only 2 more"},
        {"OnlyMagic", "GGUF", "version", "the file has only 0 more"},
        {"BadMagic", magic.file(), "magic", "is 'GGML', not 'GGUF'"},
        {"Version0", versioned(0), "version", "is 0; only 2 and 3"},
        {"Version1", versioned(1), "version", "is 1; only 2 and 3"},
        {"Version4", versioned(4), "version", "is 4; only 2 and 3"},
        {"BigEndian", versioned(0x03000000), "version", "big-endian"},
        {"CutInCounts", Gguf().header().substr(0, 20), "metadata count", "truncated"},
        {"TensorCountLies", tensors.file(), "tensor count", "says 1152921504606846976, but only"},
        {"TensorCountAllOnes", all_tensors.file(), "tensor count", "says 18446744073709551615"},
        {"MetadataCountLies", metadata.file(), "metadata count", "says 1152921504606846976, but only"},
        {"OneTensorMissing", one_more.header(), "tensor count", "says 2, but only"},
    };
}

std::vector<BadInput> metadata() {
    const auto with = [](std::uint32_t type, const std::string& value) {
        return Gguf().raw("k", type, value).header();
    };
    std::string nested;
    for (int i = 0; i < 100'000; ++i) {
        nested += little(Gguf::array, 4) + little(1, 8);
    }
    Gguf long_key;
    long_key.text(std::string(65'536, 'k'), "v");
    Gguf bad_key;
    bad_key.text("k\xff", "v");
    Gguf empty_key;
    empty_key.text("", "v");
    Gguf twice;
    twice.text("a", "1").text("b", "2").text("a", "3");
    const auto alignment = [](std::uint64_t value) {
        return Gguf().integer("general.alignment", Gguf::u32, value, 4).file();
    };
    return {
        {"UnknownType", with(13, "x"), "metadata 'k'", "unknown value type 13"},
        {"StringLengthLies", with(Gguf::string, little(two_to_60, 8)), "metadata 'k'", "takes 1152921504606846976"},
        {"StringLengthAllOnes", with(Gguf::string, little(max64, 8)), "metadata 'k'", "takes 18446744073709551615"},
        {"StringOneTooLong", with(Gguf::string, little(4, 8) + "abc"), "metadata 'k'", "only 3 more"},
        {"NumberCut", with(Gguf::u64, "1234"), "metadata 'k'", "only 4 more"},
        {"FloatCut", with(Gguf::f64, "1234"), "metadata 'k'", "only 4 more"},
        {"ArrayCountLies", with(Gguf::array, little(Gguf::u8, 4) + little(two_to_60, 8)), "metadata 'k'",
         "says 1152921504606846976"},
        {"ArrayBytesWouldOverflow", with(Gguf::array, little(Gguf::f64, 4) + little(std::uint64_t{1} << 61, 8)),
         "metadata 'k'", "says 2305843009213693952"},
        {"ArrayOfStringsLies", with(Gguf::array, little(Gguf::string, 4) + little(3, 8) + Gguf::text_value("a")),
         "metadata 'k'", "says 3"},
        {"ArrayOfStringsCut",
         with(Gguf::array, little(Gguf::string, 4) + little(2, 8) + Gguf::text_value("abcdefgh") + little(9, 8)),
         "metadata 'k'", "takes 9 bytes"},
        {"ArrayOfUnknownType", with(Gguf::array, little(77, 4) + little(0, 8)), "metadata 'k'",
         "unknown value type 77"},
        {"ArraysNestTooDeep", with(Gguf::array, nested), "metadata 'k'", "deeper than 16"},
        {"ArrayOfArraysLies", with(Gguf::array, little(Gguf::array, 4) + little(two_to_60, 8)), "metadata 'k'",
         "says 1152921504606846976"},
        {"KeyTooLong", long_key.file(), "metadata[0]: key", "has 65536 bytes"},
        {"KeyNotUtf8", bad_key.file(), "metadata[0]: key", "is not UTF-8"},
        {"KeyEmpty", empty_key.file(), "metadata[0]: key", "is empty"},
        {"KeyLengthLies", Gguf().header().substr(0, 16) + little(1, 8) + little(two_to_60, 8) + std::string(9, 'x'),
         "metadata[0]: key", "takes 1152921504606846976"},
        {"KeyTwice", twice.file(), "metadata 'a'", "occurs twice, as number 0 and as number 2"},
        {"AlignmentZero", alignment(0), "metadata 'general.alignment'", "is 0, which is not a power of two"},
        {"AlignmentNoPowerOfTwo", alignment(48), "metadata 'general.alignment'", "is 48, which is not a power of two"},
        {"AlignmentOfOtherType", Gguf().integer("general.alignment", Gguf::u64, 32, 8).file(),
         "metadata 'general.alignment'", "is not a 32-bit unsigned integer"},
        {"AlignmentIsText", Gguf().text("general.alignment", "32").file(), "metadata 'general.alignment'",
         "is not an integer"},
        {"AlignmentIsFloat", Gguf().integer("general.alignment", Gguf::f32, 32, 4).file(),
         "metadata 'general.alignment'", "is not an integer"},
    };
}

std::vector<BadInput> tensors() {
    const auto one = [](std::initializer_list<std::uint64_t> dimensions, std::uint32_t type, std::uint64_t offset,
                        std::size_t data) { return Gguf().tensor("x", dimensions, type, offset).file(data); };
    Gguf ranks;
    ranks.tensor("x", {1, 1, 1, 1, 1}, f32, 0);
    Gguf many_ranks;
    many_ranks.raw_tensor(Gguf::text_value("x") + little(0xffffffff, 4) + std::string(64, '\0'));
    Gguf twice;
    twice.tensor("x", {8}, f32, 0).tensor("x", {8}, f32, 32);
    Gguf overlap;
    overlap.tensor("a", {16}, f32, 0).tensor("b", {8}, f32, 32);
    Gguf long_name;
    long_name.tensor(std::string(65'536, 'n'), {8}, f32, 0);
    Gguf bad_name;
    bad_name.tensor("x\xc3", {8}, f32, 0);
    const std::string header = Gguf().tensor("x", {8}, f32, 0).header();
    return {
        {"DataTruncated", one({8}, f32, 0, 31), "tensor 'x': offset", "but the file holds 31 bytes of data"},
        {"NoData", header, "tensor 'x': offset", "but the file holds 0 bytes of data"},
        {"OffsetOutside", one({8}, f32, 64, 32), "tensor 'x': offset", "is 64 for 32 bytes"},
        {"OffsetFarOutside", one({8}, f32, max64 - 31, 32), "tensor 'x': offset", "is 18446744073709551584"},
        {"OffsetUnaligned", one({8}, f32, 16, 64), "tensor 'x': offset", "not a multiple of the alignment, 32"},
        {"FiveDimensions", ranks.file(4), "tensor 'x': dimensions", "are 5; at most 4"},
        {"ManyDimensions", many_ranks.file(), "tensor 'x': dimensions", "are 4294967295"},
        {"DimensionOver63Bits", one({max64}, f32, 0, 4), "tensor 'x': dimensions", "does not fit in 63 bits"},
        {"ElementsOverflow", one({std::uint64_t{1} << 62, 4}, f32, 0, 4), "tensor 'x': dimensions",
         "number of elements does not fit"},
        {"BytesOverflow", one({std::uint64_t{1} << 62}, f32, 0, 4), "tensor 'x': dimensions", "size does not fit"},
        {"RowNoMultipleOfBlock", one({48, 2}, q4_0, 0, 54), "tensor 'x': dimensions", "not a multiple of the type's"},
        {"UnknownType", one({8}, 4096, 0, 32), "tensor 'x': type", "is 4096, which is not a known type"},
        {"RemovedType", one({32}, 31, 0, 32), "tensor 'x': type", "is 31 (Q4_0_4_4), which the format no longer has"},
        {"NamedTwice", twice.file(64), "tensor 'x'", "is named twice"},
        {"Overlap", overlap.file(64), "tensor 'b': data_offsets", "overlap those of 'a'"},
        {"NameTooLong", long_name.file(32), "tensor[0]: name", "has 65536 bytes"},
        {"NameNotUtf8", bad_name.file(32), "tensor[0]: name", "is not UTF-8"},
        {"NameLengthLies", Gguf().raw_tensor(little(max64, 8) + std::string(40, 'x')).file(), "tensor[0]: name",
         "takes 18446744073709551615"},
    };
}

std::string case_name(const testing::TestParamInfo<BadInput>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Preamble, BadGguf, testing::ValuesIn(preambles()), case_name);
INSTANTIATE_TEST_SUITE_P(Metadata, BadGguf, testing::ValuesIn(metadata()), case_name);
INSTANTIATE_TEST_SUITE_P(Tensor, BadGguf, testing::ValuesIn(tensors()), case_name);

TEST(Gguf, CutAnywhereItIsAnError) {
    Gguf gguf;
    gguf.text("general.name", "n").integer("k", Gguf::u16, 7, 2);
    gguf.raw("a", Gguf::array, little(Gguf::string, 4) + little(2, 8) + Gguf::text_value("x") + Gguf::text_value("y"));
    gguf.tensor("t", {2, 3}, f32, 0).tensor("u", {4}, f32, 32);
    const std::string bytes = gguf.file(48);
    for (std::size_t length = 0; length < bytes.size(); ++length) {
        EXPECT_THROW(read_gguf_bytes(std::string_view(bytes).substr(0, length)), ModelError) << length;
    }
    EXPECT_NO_THROW(read_gguf_bytes(bytes));
}

}  // namespace

}  // namespace stagehand::cli::model::test
