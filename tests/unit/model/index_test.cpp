// Shard indexes alone, without their shards.
#include <gtest/gtest.h>

#include <string>

#include "model/byte_source.h"
#include "model/safetensors_index.h"
#include "model_files.h"

namespace stagehand::cli::model::test {

namespace {

ShardIndex read_index(std::string_view text, const ReadOptions& options = {}) {
    MemorySource source("memory", text);
    return read_shard_index(source, options);
}

TEST(ShardIndex, ListsShardsInOrderAndTheirTensors) {
    const ShardIndex index =
        read_index(R"({"metadata":{"total_size":12,"x":[[{}]]},"weight_map":{"c":"m-00002-of-00002.safetensors",)"
                   R"("a":"m-00001-of-00002.safetensors","b":"m-00002-of-00002.safetensors"}})");
    ASSERT_EQ(index.shards.size(), 2U);
    EXPECT_EQ(index.shards[0], "m-00001-of-00002.safetensors");
    ASSERT_EQ(index.entries.size(), 3U);
    EXPECT_EQ(index.entries[0].tensor, "c");
    EXPECT_EQ(index.entries[0].shard, 1U);
    EXPECT_EQ(index.entries[1].shard, 0U);
    EXPECT_EQ(index.entries[2].shard, 1U);
}

TEST(ShardIndex, ShardsMayBeInSubfolders) {
    EXPECT_EQ(read_index(R"({"weight_map":{"a":"sub/..x/m.safetensors"}})").shards[0], "sub/..x/m.safetensors");
}

TEST(ShardIndex, ObeysTheLimit) {
    const std::string text = R"({"weight_map":{"a":"m"}})";
    ReadOptions options;
    options.max_header_bytes = text.size();
    EXPECT_EQ(read_index(text, options).entries.size(), 1U);
    options.max_header_bytes -= 1;
    EXPECT_EQ(error_of([&] { read_index(text, options); }).field(), "file");
}

class BadIndex : public testing::TestWithParam<BadInput> {};

TEST_P(BadIndex, IsAnErrorThatNamesFileAndField) {
    const BadInput& input = GetParam();
    const ModelError error = error_of([&] { read_index(input.bytes); });
    EXPECT_EQ(error.file(), "memory");
    EXPECT_EQ(error.field(), input.field) << error.what();
    EXPECT_NE(error.message().find(input.message), std::string::npos) << error.what();
}

std::string map_to(std::string_view file) { return R"({"weight_map":{"t":")" + std::string(file) + R"("}})"; }

std::vector<BadInput> bad_indexes() {
    const std::string deep(100'000, '[');
    return {
        {"Empty", "", "file", "is empty"},
        {"ByteOrderMark", "\xef\xbb\xbf" + map_to("m"), "index", "at byte 0: a byte order mark"},
        {"NoJson", "weights", "index", "is not valid JSON at byte 0"},
        {"Unclosed", R"({"weight_map":{"t":"m")", "index", "is not valid JSON"},
        {"TopIsArray", "[]", "index", "must be a JSON object, but is an array"},
        {"TopIsNumber", "1", "index", "must be a JSON object, but is a number"},
        {"Deep", deep, "index", "but is an array"},
        {"DeepInMetadata", R"({"metadata":)" + deep, "metadata", "deeper than 64"},
        {"DeepInWeightMap", R"({"weight_map":)" + deep, "weight_map", "but is an array"},
        {"DeepInEntry", R"({"weight_map":{"t":)" + deep, "weight_map: 't'", "but is an array"},
        {"NoWeightMap", R"({"metadata":{}})", "weight_map", "is missing"},
        {"WeightMapEmpty", R"({"weight_map":{}})", "weight_map", "is empty"},
        {"WeightMapTwice", R"({"weight_map":{"a":"m"},"weight_map":{"b":"m"}})", "weight_map", "occurs twice"},
        {"WeightMapIsString", R"({"weight_map":"m"})", "weight_map", "but is a string"},
        {"WeightMapIsArray", R"({"weight_map":["m"]})", "weight_map", "but is an array"},
        {"FileIsNumber", R"({"weight_map":{"t":1}})", "weight_map: 't'", "must be a file's name, but is a number"},
        {"FileIsObject", R"({"weight_map":{"t":{}}})", "weight_map: 't'", "but is an object"},
        {"TensorTwice", R"({"weight_map":{"t":"a","u":"a","t":"b"}})", "weight_map: 't'",
         "occurs twice, for 'a' and for 'b'"},
        {"TensorTwiceInOneFile", R"({"weight_map":{"t":"a","t":"a"}})", "weight_map: 't'", "occurs twice"},
        {"FileEmpty", map_to(""), "weight_map: 't'", "the file name '' is empty"},
        {"FileAbsolute", map_to("/etc/passwd"), "weight_map: 't'", "'/etc/passwd' is an absolute path"},
        {"FileAbove", map_to("../m.safetensors"), "weight_map: 't'", "leads out of the index's folder"},
        {"FileAboveFurtherDown", map_to("a/../../m.safetensors"), "weight_map: 't'", "leads out"},
        {"FileAboveAtTheEnd", map_to("a/.."), "weight_map: 't'", "leads out"},
        {"FileIsDot", map_to("."), "weight_map: 't'", "is not a plain path"},
        {"FileStartsWithDot", map_to("./m.safetensors"), "weight_map: 't'", "is not a plain path"},
        {"FileWithEmptyComponent", map_to("a//m.safetensors"), "weight_map: 't'", "is not a plain path"},
        {"FileIsFolder", map_to("a/"), "weight_map: 't'", "is not a plain path"},
        {"FileWithNul", map_to("m\\u0000.safetensors"), "weight_map: 't'", "holds a NUL byte"},
        {"NotUtf8", map_to("m\xff"), "index", "UTF-8"},
        {"NameTooLong", R"({"weight_map":{")" + std::string(65'536, 'n') + R"(":"m"}})",
         "weight_map: '" + std::string(160, 'n') + "...'", "is longer than 65535"},
    };
}

INSTANTIATE_TEST_SUITE_P(Index, BadIndex, testing::ValuesIn(bad_indexes()),
                         [](const testing::TestParamInfo<BadInput>& info) { return info.param.name; });

}  // namespace

}  // namespace stagehand::cli::model::test
