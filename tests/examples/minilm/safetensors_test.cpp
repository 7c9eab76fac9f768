// The example's reader of safetensors headers.
#include <gtest/gtest.h>

#include "minilm.h"
#include "scratch_folder.h"
#include "small_model.h"

namespace {

std::string with_header(const std::string& text, std::size_t data_bytes) {
    std::string file;
    for (int shift = 0; shift < 64; shift += 8) file += static_cast<char>(text.size() >> shift & 0xff);
    return file + text + std::string(data_bytes, '\0');
}

class Safetensors : public testing::Test {
protected:
    ~Safetensors() override { safetensors_close(&model_); }

    bool open(const std::string& contents) {
        return safetensors_open(folder_.write("a.safetensors", contents).c_str(), &model_, &error_);
    }

    void expect_refused(const std::string& contents, const std::string& reason) {
        EXPECT_FALSE(open(contents));
        EXPECT_NE(std::string(error_.text).find("a.safetensors: "), std::string::npos) << error_.text;
        EXPECT_NE(std::string(error_.text).find(reason), std::string::npos) << error_.text;
    }

    ScratchFolder folder_;
    safetensors model_{.path = nullptr, .file = -1, .tensor_bytes = 0, .count = 0, .tensors = nullptr};
    error error_{};
};

TEST_F(Safetensors, FindsTensorsByNameAndShape) {
    const std::string contents = make_safetensors({{"matrix", {3, 5}}, {"vector", {7}}});
    ASSERT_TRUE(open(contents)) << error_.text;
    EXPECT_EQ(model_.count, 2U);
    EXPECT_EQ(model_.tensor_bytes, (15 + 7) * sizeof(float));

    const tensor* found = nullptr;
    ASSERT_TRUE(safetensors_find(&model_, "matrix", 3, 5, &found, &error_)) << error_.text;
    EXPECT_EQ(found->file_offset, contents.size() - (15 + 7) * sizeof(float));
    EXPECT_EQ(found->bytes, 15 * sizeof(float));
    ASSERT_TRUE(safetensors_find(&model_, "vector", 0, 7, &found, &error_)) << error_.text;
    EXPECT_EQ(found->file_offset, contents.size() - 7 * sizeof(float));
}

TEST_F(Safetensors, NamesAMissingTensorAndAWrongShape) {
    ASSERT_TRUE(open(make_safetensors({{"matrix", {3, 5}}}))) << error_.text;
    const tensor* found = nullptr;
    EXPECT_FALSE(safetensors_find(&model_, "other", 3, 5, &found, &error_));
    EXPECT_NE(std::string(error_.text).find("no tensor other"), std::string::npos) << error_.text;
    EXPECT_FALSE(safetensors_find(&model_, "matrix", 5, 3, &found, &error_));
    EXPECT_NE(std::string(error_.text).find("tensor matrix is F32 [3, 5], expected F32 [5, 3]"), std::string::npos)
        << error_.text;
    EXPECT_EQ(found, nullptr);
}

TEST_F(Safetensors, RefusesAnotherType) {
    ASSERT_TRUE(open(with_header(R"({"a": {"dtype": "F16", "shape": [4], "data_offsets": [0, 8]}})", 8)))
        << error_.text;
    const tensor* found = nullptr;
    EXPECT_FALSE(safetensors_find(&model_, "a", 0, 4, &found, &error_));
    EXPECT_NE(std::string(error_.text).find("F16 [4], expected F32 [4]"), std::string::npos) << error_.text;
}

TEST_F(Safetensors, RefusesBytesThatDoNotMatchTheShape) {
    ASSERT_TRUE(open(with_header(R"({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}})", 8)))
        << error_.text;
    const tensor* found = nullptr;
    EXPECT_FALSE(safetensors_find(&model_, "a", 0, 4, &found, &error_));
    EXPECT_NE(std::string(error_.text).find("has 8 bytes"), std::string::npos) << error_.text;
}

TEST_F(Safetensors, RefusesBrokenFiles) {
    expect_refused("", "ends at byte 0");
    expect_refused("abc", "ends at byte 3");
    expect_refused(std::string(8, '\xff'), "the header's length");
    expect_refused(std::string("\xe8\x03\0\0\0\0\0\0{}", 10), "the header's length of 1000 bytes");
    expect_refused(with_header("{", 0), "not valid JSON");
    expect_refused(with_header("[]", 0), "not a JSON object");
    expect_refused(with_header(R"({"a": 1})", 0), "tensor a: dtype");
    expect_refused(with_header(R"({"a": {"dtype": "F32", "shape": 4, "data_offsets": [0, 16]}})", 16),
                   "tensor a: shape");
    expect_refused(with_header(R"({"a": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}})", 16),
                   "tensor a: shape");
    expect_refused(with_header(R"({"a": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}})", 16),
                   "tensor a: data_offsets");
    expect_refused(with_header(R"({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}})", 12),
                   "tensor a ends 4 bytes after");
    expect_refused(with_header(std::string(100000, '['), 0), "not valid JSON");
}

TEST_F(Safetensors, NamesAMissingFileAndAFolder) {
    EXPECT_FALSE(safetensors_open(folder_.path("none").c_str(), &model_, &error_));
    EXPECT_EQ(std::string(error_.text), folder_.path("none") + ": No such file or directory");
    EXPECT_FALSE(safetensors_open(folder_.path().c_str(), &model_, &error_));
    EXPECT_EQ(std::string(error_.text), folder_.path() + ": not a regular file");
}

}  // namespace
