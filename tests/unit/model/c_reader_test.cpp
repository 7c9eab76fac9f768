// What the Python package gets of a model: arrays of C.
#include "model/c_reader.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <memory>
#include <string>
#include <string_view>

#include "model_files.h"

namespace stagehand::cli::model::test {

namespace {

using Reading = std::unique_ptr<model_reading, decltype(&model_close)>;

Reading open(const std::string& path) {
    const char* const paths[] = {path.c_str()};
    return {model_open(paths, 1), model_close};
}

std::string_view view(const model_text& text) { return {text.data, static_cast<std::size_t>(text.bytes)}; }

TEST(CReader, ShowsFilesFactsAndTensors) {
    TemporaryFolder folder;
    const std::string header = R"({"__metadata__":{"format":"pt","note":"a\u0000b"},)" +
                               entry("w", "F4", "[2,6]", 4, 10) + "," + entry("v\\u0000", "F32", "[]", 0, 4) + "}";
    const std::string path = folder.write("m.safetensors", safetensors(header, 10));
    const Reading reading = open(path);
    std::int32_t number = -1;
    EXPECT_EQ(model_error(reading.get(), &number), nullptr);
    EXPECT_EQ(number, 0);

    std::uint64_t count = 0;
    const model_file* files = model_files(reading.get(), &count);
    ASSERT_EQ(count, 1U);
    EXPECT_EQ(view(files[0].path), path);
    EXPECT_EQ(files[0].bytes, 8 + header.size() + 10);
    struct stat status = {};
    ASSERT_EQ(stat(path.c_str(), &status), 0);
    EXPECT_EQ(files[0].device, status.st_dev);
    EXPECT_EQ(files[0].inode, status.st_ino);
    EXPECT_EQ(files[0].changed_ns, status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec);
    ASSERT_EQ(files[0].fact_count, 2U);
    EXPECT_EQ(view(files[0].facts[0].key), "format");
    EXPECT_EQ(view(files[0].facts[1].value), std::string_view("a\0b", 3));

    const model_tensor* tensors = model_tensors(reading.get(), &count);
    ASSERT_EQ(count, 2U);
    EXPECT_EQ(view(tensors[0].name), "w");
    EXPECT_EQ(view(tensors[0].type), "F4");
    ASSERT_EQ(tensors[0].dimensions, 2U);
    EXPECT_EQ(tensors[0].shape[1], 6U);
    EXPECT_EQ(tensors[0].offset, 8 + header.size() + 4);
    EXPECT_EQ(tensors[0].bytes, 6U);
    EXPECT_EQ(tensors[0].file_bytes, 6U);
    EXPECT_EQ(tensors[0].packed, 0);
    EXPECT_EQ(view(tensors[1].name), std::string_view("v\0", 2));
    EXPECT_EQ(tensors[1].dimensions, 0U);
}

TEST(CReader, ShowsWhatAPackedTensorWas) {
    TemporaryFolder folder;
    const std::string header =
        R"({"__metadata__":{"stagehand.packed":"{\"version\":1,\"tensors\":{\"w\":{\"dtype\":\"BF16\",)"
        R"(\"shape\":[4,3]}}}","k":"x"},)" +
        entry("w", "U8", "[80]", 0, 80) + "}";
    const std::string packed = packed_head(1, 24, 80) + std::string(16, '\0');
    const Reading reading = open(folder.write("m.safetensors", safetensors(header) + packed));
    std::uint64_t count = 0;
    const model_tensor* tensors = model_tensors(reading.get(), &count);
    ASSERT_EQ(count, 1U);
    EXPECT_EQ(view(tensors[0].type), "BF16");
    EXPECT_EQ(tensors[0].bytes, 24U);
    EXPECT_EQ(tensors[0].file_bytes, 80U);
    EXPECT_EQ(tensors[0].packed, 1);
    const model_file* files = model_files(reading.get(), &count);
    ASSERT_EQ(files[0].fact_count, 1U);
    EXPECT_EQ(view(files[0].facts[0].key), "k");
}

TEST(CReader, AnErrorIsATextAndANumber) {
    TemporaryFolder folder;
    std::int32_t number = -1;
    const Reading absent = open(folder.path("absent"));
    EXPECT_NE(std::string(model_error(absent.get(), &number)).find("absent: file: cannot be opened"),
              std::string::npos);
    EXPECT_EQ(number, ENOENT);
    const Reading broken = open(folder.write("m.safetensors", "no header"));
    EXPECT_NE(std::string(model_error(broken.get(), &number)).find("header length"), std::string::npos);
    EXPECT_EQ(number, 0);
    std::uint64_t count = 1;
    model_files(broken.get(), &count);
    EXPECT_EQ(count, 0U);
    count = 1;
    model_tensors(broken.get(), &count);
    EXPECT_EQ(count, 0U);
}

}  // namespace

}  // namespace stagehand::cli::model::test
