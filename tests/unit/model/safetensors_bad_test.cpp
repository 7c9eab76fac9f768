// Bad safetensors files: each is an error that names the file and the field.
#include <gtest/gtest.h>

#include <string>

#include "model/safetensors.h"
#include "model_files.h"

namespace stagehand::cli::model::test {

namespace {

class BadSafetensors : public testing::TestWithParam<BadInput> {};

TEST_P(BadSafetensors, IsAnErrorThatNamesFileAndField) {
    const BadInput& input = GetParam();
    const ModelError error = error_of([&] { read_safetensors_bytes(input.bytes); });
    EXPECT_EQ(error.file(), "memory");
    EXPECT_EQ(error.field(), input.field) << error.what();
    EXPECT_NE(error.message().find(input.message), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()), error.file() + ": " + error.field() + ": " + error.message());
}

// One tensor with the members as given.
std::string with_members(std::string_view members, std::size_t data_bytes = 4) {
    return safetensors(R"({"t":{)" + std::string(members) + "}}", data_bytes);
}

std::string repeated(std::string_view text, std::size_t times) {
    std::string out;
    for (std::size_t i = 0; i < times; ++i) {
        out += text;
    }
    return out;
}

const std::string good_header = "{" + entry("t", "U8", "[4]", 0, 4) + "}";
const std::string big = "18446744073709551615";

std::vector<BadInput> lengths() {
    return {
        {"Empty", "", "file", "is empty"},
        {"ShorterThanALength", "abc", "header length", "takes 8 bytes, but the file has 3"},
        {"LengthZero", little(0, 8) + "{}", "header length", "is zero"},
        {"LengthOneTooBig", little(3, 8) + "{}", "header length", "says 3, but only 2 bytes follow"},
        {"LengthBeyondFile", little(1 << 20, 8) + "{}", "header length", "says 1048576, but only 2"},
        {"LengthTwoTo63", little(std::uint64_t{1} << 63, 8) + "{}", "header length", "says 9223372036854775808"},
        {"LengthAllOnes", little(max64, 8) + "{}", "header length", "says " + big},
        {"LengthTooShortForTheJson", little(20, 8) + good_header + "    ", "header", "is not valid JSON"},
        {"NothingAfterLength", little(8, 8), "header length", "only 0 bytes follow"},
        {"LfsPointer", "version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "header length", "Git LFS"},
        {"ZipArchive", "PK\x03\x04" + std::string(60, 'x'), "header length", "zip archive"},
        {"PlainJson", R"({"metadata":{},"weight_map":{}})", "header length", "this is JSON"},
        {"GgufFile", "GGUF" + std::string(60, '\x03'), "header length", "GGUF"},
        {"TextFile", "hello, world: this is no model", "header length", "not a safetensors file"},
    };
}

std::vector<BadInput> json() {
    const std::string deep = repeated("[", 100'000);
    const std::string deep_objects = repeated(R"({"a":)", 100'000);
    return {
        {"NoJson", safetensors("hello"), "header", "is not valid JSON at byte 8"},
        {"OnlySpace", safetensors("    "), "header", "is not valid JSON"},
        {"Unclosed", safetensors(good_header.substr(0, good_header.size() - 1), 4), "header", "unexpected end"},
        {"TrailingComma", safetensors(R"({"t":{},})"), "tensor 't': dtype", "is missing"},
        {"TwoDocuments", safetensors(good_header + "{}", 4), "header", "is not valid JSON"},
        {"NulAfterDocument", safetensors(good_header + std::string(3, '\0'), 4), "header", "NUL"},
        {"NulInside", safetensors(std::string("{\0}", 3)), "header", "is not valid JSON at byte 9: a NUL"},
        {"InvalidUtf8", safetensors("{" + entry("t\xff", "U8", "[4]", 0, 4) + "}", 4), "header", "UTF-8"},
        {"SurrogateHalf", safetensors("{" + entry("t\\ud800", "U8", "[4]", 0, 4) + "}", 4), "header", "surrogate"},
        {"TopIsArray", safetensors("[]"), "header", "must be a JSON object, but is an array"},
        {"TopIsString", safetensors("\"x\""), "header", "must be a JSON object, but is a string"},
        {"TopIsNull", safetensors("null"), "header", "must be a JSON object, but is null"},
        {"DeepArrays", safetensors(deep), "header", "must be a JSON object, but is an array"},
        {"DeepArraysAsTensor", safetensors(R"({"t":)" + deep), "tensor 't'", "must be an object"},
        {"DeepArraysAsShape", with_members(R"("shape":[)" + deep), "tensor 't': shape", "holds an array"},
        {"DeepArraysInMetadata", safetensors(R"({"__metadata__":{"k":)" + deep), "__metadata__: 'k'",
         "must be a string, but is an array"},
        {"DeepArraysInUnknownMember", with_members(R"("x":)" + deep), "tensor 't'", "deeper than 64"},
        {"DeepObjectsInUnknownMember", with_members(R"("x":)" + deep_objects), "tensor 't'", "deeper than 64"},
        {"DeepObjects", safetensors(deep_objects), "tensor 'a'", "deeper than 64"},
        {"HugeNumber", with_members(R"("shape":[1e999])"), "header", "number overflow"},
        {"ControlCharactersInName", safetensors("{\"a\\u001b[2J\":1}"), "tensor 'a\\x1b[2J'", "must be an object"},
    };
}

std::vector<BadInput> kinds() {
    const std::string offsets = R"("data_offsets":[0,4])";
    const std::string shape = R"("shape":[4])";
    const std::string dtype = R"("dtype":"U8")";
    return {
        {"TensorIsNumber", safetensors(R"({"t":1})"), "tensor 't'", "but is a number"},
        {"TensorIsNull", safetensors(R"({"t":null})"), "tensor 't'", "but is null"},
        {"NoDtype", with_members(shape + "," + offsets), "tensor 't': dtype", "is missing"},
        {"NoShape", with_members(dtype + "," + offsets), "tensor 't': shape", "is missing"},
        {"NoOffsets", with_members(dtype + "," + shape), "tensor 't': data_offsets", "is missing"},
        {"DtypeTwice", with_members(dtype + "," + dtype), "tensor 't': dtype", "occurs twice"},
        {"ShapeTwice", with_members(shape + "," + shape), "tensor 't': shape", "occurs twice"},
        {"OffsetsTwice", with_members(offsets + "," + offsets), "tensor 't': data_offsets", "occurs twice"},
        {"DtypeIsNumber", with_members(R"("dtype":4)"), "tensor 't': dtype", "must be a string, but is a number"},
        {"DtypeIsObject", with_members(R"("dtype":{})"), "tensor 't': dtype", "but is an object"},
        {"DtypeUnknown", with_members(R"("dtype":"F31")"), "tensor 't': dtype", "is 'F31', which is not a known type"},
        {"DtypeLowerCase", with_members(R"("dtype":"f32")"), "tensor 't': dtype", "is 'f32'"},
        {"ShapeIsString", with_members(R"("shape":"4")"), "tensor 't': shape", "but is a string"},
        {"ShapeIsObject", with_members(R"("shape":{})"), "tensor 't': shape", "but is an object"},
        {"ShapeHoldsString", with_members(R"("shape":["4"])"), "tensor 't': shape", "holds a string"},
        {"ShapeHoldsNegative", with_members(R"("shape":[-1])"), "tensor 't': shape", "holds a negative number"},
        {"ShapeHoldsFraction", with_members(R"("shape":[1.0])"), "tensor 't': shape", "not a 64-bit integer"},
        {"ShapeBeyond64Bits", with_members(R"("shape":[18446744073709551616])"), "tensor 't': shape",
         "not a 64-bit integer"},
        {"OffsetsAreNumber", with_members(R"("data_offsets":0)"), "tensor 't': data_offsets", "but is a number"},
        {"OneOffset", with_members(R"("data_offsets":[0])"), "tensor 't': data_offsets", "but holds 1"},
        {"ThreeOffsets", with_members(R"("data_offsets":[0,4,8])"), "tensor 't': data_offsets", "but holds 3"},
        {"NegativeOffset", with_members(R"("data_offsets":[-4,0])"), "tensor 't': data_offsets", "negative"},
        {"OffsetIsNull", with_members(R"("data_offsets":[0,null])"), "tensor 't': data_offsets", "holds null"},
        {"ByteOrderMark", safetensors("\xef\xbb\xbf" + good_header, 4), "header", "at byte 8: a byte order mark"},
        {"MetadataIsString", safetensors(R"({"__metadata__":"x"})"), "__metadata__", "must be an object of strings"},
        {"MetadataHoldsNumber", safetensors(R"({"__metadata__":{"k":1}})"), "__metadata__: 'k'", "but is a number"},
        {"MetadataTwice", safetensors(R"({"__metadata__":{},"__metadata__":{}})"), "__metadata__", "occurs twice"},
    };
}

std::vector<BadInput> sizes() {
    const auto one = [](std::string_view dtype, std::string_view shape, std::uint64_t begin, std::uint64_t end,
                        std::size_t data) {
        return safetensors("{" + entry("t", dtype, shape, begin, end) + "}", data);
    };
    const auto two = [](std::uint64_t begin_a, std::uint64_t end_a, std::uint64_t begin_b, std::uint64_t end_b,
                        std::size_t data) {
        return safetensors("{" + entry("a", "U8", "[" + std::to_string(end_a - begin_a) + "]", begin_a, end_a) + "," +
                               entry("b", "U8", "[" + std::to_string(end_b - begin_b) + "]", begin_b, end_b) + "}",
                           data);
    };
    const std::string same = entry("t", "U8", "[4]", 0, 4) + "," + entry("t", "U8", "[4]", 4, 8);
    return {
        {"DataTruncated", one("U8", "[4]", 0, 4, 3), "tensor 't': data_offsets", "end at 4, but the file holds 3"},
        {"NoData", one("F32", "[1024]", 0, 4096, 0), "tensor 't': data_offsets", "the file holds 0 bytes"},
        {"EndFarOutside", one("U8", "[4]", 0, max64, 4), "tensor 't': data_offsets", "end at " + big},
        {"BeginAfterEnd", one("U8", "[4]", 4, 0, 4), "tensor 't': data_offsets", "begin at 4, after their end at 0"},
        {"SpanTooLong", one("F32", "[3]", 0, 16, 16), "tensor 't': data_offsets",
         "span 16 bytes, but dtype and shape make 12"},
        {"SpanTooShort", one("F64", "[2]", 0, 8, 8), "tensor 't': data_offsets", "make 16"},
        {"ScalarSpansNothing", one("F32", "[]", 0, 0, 0), "tensor 't': data_offsets", "make 4"},
        {"ElementsOverflow", one("U8", "[4294967296,4294967296]", 0, 0, 4), "tensor 't': shape",
         "number of elements does not fit"},
        {"ElementsWrapToTheSpan", one("U8", "[9223372036854775809,2]", 0, 2, 2), "tensor 't': shape",
         "number of elements does not fit"},
        {"BytesOverflow", one("F64", "[4611686018427387904]", 0, 0, 4), "tensor 't': shape", "size does not fit"},
        {"HalfAByte", one("F4", "[3]", 0, 1, 1), "tensor 't': shape", "not a whole number of bytes"},
        {"SixBitsRagged", one("F6_E2M3", "[3]", 0, 2, 2), "tensor 't': shape", "not a whole number of bytes"},
        {"Overlap", two(0, 4, 3, 7, 7), "tensor 'b': data_offsets", "overlap those of 'a'"},
        {"Contained", two(0, 8, 2, 4, 8), "tensor 'b': data_offsets", "overlap those of 'a'"},
        {"EmptyInside", two(0, 8, 4, 4, 8), "tensor 'b': data_offsets", "overlap those of 'a'"},
        {"SameBytes", two(0, 4, 0, 4, 4), "tensor 'b': data_offsets", "overlap those of 'a'"},
        {"Gap", two(0, 4, 8, 12, 12), "tensor 'b': data_offsets", "leave 4 bytes before them"},
        {"GapAtFront", one("U8", "[4]", 4, 8, 8), "tensor 't': data_offsets", "leave 4 bytes before them"},
        {"BytesLeftOver", one("U8", "[4]", 0, 4, 9), "data_offsets", "end at 4, but the file holds 9"},
        {"DataWithoutTensors", safetensors("{}", 9), "data_offsets", "end at 0, but the file holds 9"},
        {"NamedTwice", safetensors("{" + same + "}", 8), "tensor 't'", "is named twice"},
        {"NamedTwiceThroughEscapes",
         safetensors("{" + entry("t", "U8", "[4]", 0, 4) + "," + entry("\\u0074", "U8", "[4]", 4, 8) + "}", 8),
         "tensor 't'", "is named twice"},
        {"NameTooLong", safetensors("{" + entry(std::string(65536, 'n'), "U8", "[4]", 0, 4) + "}", 4),
         "tensor '" + std::string(160, 'n') + "...'", "longer than 65535 bytes"},
    };
}

std::vector<BadInput> descriptions() {
    // What the metadata say of a packed tensor, and what it says itself.
    const auto packed = [](std::string_view dtype, std::string_view shape, const std::string& head, std::size_t bytes) {
        const std::string count = std::to_string(bytes);
        return safetensors(R"({"__metadata__":{"stagehand.packed":"{\"version\":1,\"tensors\":{\"t\":{\"dtype\":\")" +
                           std::string(dtype) + R"(\",\"shape\":)" + std::string(shape) + R"(}}}"},)" +
                           entry("t", "U8", "[" + count + "]", 0, bytes) + "}") +
               head + std::string(bytes - head.size(), '\0');
    };
    const std::string head = packed_head(1, 24, 80);
    return {
        {"OtherType", packed("F16", "[12]", head, 80), "tensor 't'", "not a packed tensor of the type and the shape"},
        {"OtherShape", packed("BF16", "[13]", head, 80), "tensor 't'", "not a packed tensor of the type and the shape"},
        {"TypeThatIsNotPacked", packed("I16", "[12]", head, 80), "tensor 't'",
         "not a packed tensor of the type and the shape"},
        {"ShorterThanAHead", packed("BF16", "[12]", head.substr(0, 63), 63), "tensor 't'",
         "not a packed tensor: it has 63 bytes"},
        {"NoPackedTensor", packed("BF16", "[12]", "", 80), "tensor 't'", "not a packed tensor: it does not begin with"},
        {"CutOff", packed("BF16", "[12]", head, 64), "tensor 't'", "it has 64 bytes instead of 80"},
    };
}

std::string case_name(const testing::TestParamInfo<BadInput>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Length, BadSafetensors, testing::ValuesIn(lengths()), case_name);
INSTANTIATE_TEST_SUITE_P(Json, BadSafetensors, testing::ValuesIn(json()), case_name);
INSTANTIATE_TEST_SUITE_P(Descriptions, BadSafetensors, testing::ValuesIn(descriptions()), case_name);
INSTANTIATE_TEST_SUITE_P(Kind, BadSafetensors, testing::ValuesIn(kinds()), case_name);
INSTANTIATE_TEST_SUITE_P(Size, BadSafetensors, testing::ValuesIn(sizes()), case_name);

TEST(Safetensors, CutAnywhereItIsAnError) {
    const std::string bytes =
        safetensors(R"({"__metadata__":{"k":"v"},)" + entry("a", "F32", "[2,3]", 0, 24) + "}", 24);
    for (std::size_t length = 0; length < bytes.size(); ++length) {
        EXPECT_THROW(read_safetensors_bytes(std::string_view(bytes).substr(0, length)), ModelError) << length;
    }
    EXPECT_NO_THROW(read_safetensors_bytes(bytes));
}

}  // namespace

}  // namespace stagehand::cli::model::test
