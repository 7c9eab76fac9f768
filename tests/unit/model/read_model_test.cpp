// The argument MODEL as a user gives it: files, shard indexes, parts of splits, and folders.
#include "model/read_model.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "model_files.h"

namespace stagehand::cli::model::test {

namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t f32 = 0;

// A safetensors file of byte tensors, eight bytes each.
std::string shard(std::initializer_list<std::string> tensors) {
    std::string header = "{";
    std::uint64_t at = 0;
    for (const std::string& name : tensors) {
        header += (at == 0 ? "" : ",") + entry(name, "U8", "[8]", at, at + 8);
        at += 8;
    }
    return safetensors(header + "}", at);
}

const std::string one = "model-00001-of-00002.safetensors";
const std::string two = "model-00002-of-00002.safetensors";
const std::string index_name = "model.safetensors.index.json";
const std::string good_index =
    R"({"metadata":{"total_size":24},"weight_map":{"a":")" + one + R"(","b":")" + one + R"(","c":")" + two + R"("}})";

class ReadModel : public testing::Test {
protected:
    void write_sharded(const std::string& index = good_index) {
        folder.write(one, shard({"a", "b"}));
        folder.write(two, shard({"c"}));
        folder.write(index_name, index);
    }

    // Expects that reading `name` in the folder fails with these texts in the error.
    void expect_error(const std::string& name, const std::string& file, const std::string& field,
                      const std::string& message) {
        const ModelError error = error_of([&] { read_model(folder.path(name)); });
        EXPECT_EQ(error.file(), folder.path(file)) << error.what();
        EXPECT_EQ(error.field(), field) << error.what();
        EXPECT_NE(error.message().find(message), std::string::npos) << error.what();
    }

    std::string gguf_part(const std::string& tensor, std::uint64_t number, std::uint64_t count) {
        Gguf gguf;
        gguf.integer("split.no", Gguf::u16, number, 2).integer("split.count", Gguf::u16, count, 2);
        return gguf.tensor(tensor, {8}, f32, 0).file(32);
    }

    TemporaryFolder folder;
};

TEST_F(ReadModel, AFileByContentNotByName) {
    EXPECT_EQ(read_model(folder.write("weights.bin", shard({"a"}))).format, Format::safetensors);
    Gguf gguf;
    gguf.tensor("x", {8}, f32, 0);
    EXPECT_EQ(read_model(folder.write("weights.safetensors", gguf.file(32))).format, Format::gguf);
}

TEST_F(ReadModel, ShardsByFileIndexOrFolder) {
    write_sharded();
    for (const std::string& path : {folder.path(index_name), folder.path(), folder.path() + "/"}) {
        const Model model = read_model(path);
        ASSERT_EQ(model.files.size(), 2U) << path;
        EXPECT_EQ(fs::path(model.files[0].path).filename(), one);
        EXPECT_EQ(fs::path(model.files[1].path).filename(), two);
        EXPECT_EQ(model.tensors.size(), 3U);
        EXPECT_EQ(model.total_bytes, 24U);
        EXPECT_EQ(tensor_named(model, "c").file, 1U);
    }
    EXPECT_EQ(read_model(folder.path(two)).total_bytes, 8U);  // one shard alone is a model, too
}

TEST_F(ReadModel, AFolderWithoutModel) {
    folder.write("config.json", "{}");
    expect_error("", "", "folder", "holds no model");
}

TEST_F(ReadModel, AFolderWithSeveralModels) {
    folder.write("a.safetensors", shard({"a"}));
    folder.write("b.safetensors", shard({"a"}));
    expect_error("", "", "folder", "holds several models ('a.safetensors', 'b.safetensors')");
    expect_error("", "", "folder", "index.json if they are shards");
    folder.write("c.gguf", "");
    folder.write("d.gguf", "");
    folder.write("e.gguf", "");
    expect_error("", "", "folder", "and 1 more");
}

TEST_F(ReadModel, WhatIsMissing) {
    expect_error("nothing", "nothing", "file", "No such file");
    write_sharded();
    fs::remove(folder.path(two));
    expect_error(index_name, two, "file", "No such file");
    fs::create_directory(folder.path(two));
    expect_error(index_name, two, "file", "is a directory");
}

TEST_F(ReadModel, ABadShardIsNamed) {
    write_sharded();
    folder.write(two, "short");
    expect_error(index_name, two, "header length", "the file has 5");
    folder.write(two, "");
    expect_error(index_name, two, "file", "is empty");
}

TEST_F(ReadModel, IndexAndShardsMustAgree) {
    write_sharded();
    folder.write(two, shard({"c", "d"}));
    expect_error(index_name, two, "tensor 'd'", "is not in the index");
    folder.write(two, shard({"c", "a"}));
    expect_error(index_name, two, "tensor 'a'", "is also in '" + folder.path(one) + "'");

    const std::string more = good_index.substr(0, good_index.size() - 2) + R"(,"e":")" + two + R"("}})";
    write_sharded(more);
    expect_error(index_name, index_name, "weight_map: 'e'", "is not in '" + two + "', nor in any other shard");

    const std::string swapped = R"({"weight_map":{"a":")" + one + R"(","b":")" + two + R"(","c":")" + two + R"("}})";
    write_sharded(swapped);
    expect_error(index_name, index_name, "weight_map: 'b'", "is not in '" + two + "', but in '" + one + "'");
}

TEST_F(ReadModel, AShardUnderTwoNames) {
    folder.write(one, shard({"a", "b"}));
    fs::create_symlink(folder.path(one), folder.path(two));
    folder.write(index_name, good_index);
    expect_error(index_name, index_name, "weight_map", "names one file twice, as '" + one + "' and as '" + two + "'");
    fs::remove(folder.path(two));
    fs::create_hard_link(folder.path(one), folder.path(two));
    expect_error(index_name, index_name, "weight_map", "names one file twice");
}

TEST_F(ReadModel, ShardsStayInTheFolder) {
    folder.write("secret.safetensors", shard({"a"}));
    folder.write("sub/" + index_name, R"({"weight_map":{"a":"../secret.safetensors"}})");
    expect_error("sub/" + index_name, "sub/" + index_name, "weight_map: 'a'", "leads out of the index's folder");
    folder.write("sub/" + index_name, R"({"weight_map":{"a":")" + folder.path("secret.safetensors") + R"("}})");
    expect_error("sub/" + index_name, "sub/" + index_name, "weight_map: 'a'", "is an absolute path");
}

TEST_F(ReadModel, AModelWithoutBytes) {
    expect_error("", "", "folder", "holds no model");
    folder.write("a.safetensors", safetensors("{}"));
    expect_error("a.safetensors", "a.safetensors", "tensors", "the model holds none");
    folder.write("b.safetensors", safetensors("{" + entry("x", "U8", "[0]", 0, 0) + "}"));
    expect_error("b.safetensors", "b.safetensors", "tensors", "are all empty");
    folder.write("c.gguf", Gguf().file());
    expect_error("c.gguf", "c.gguf", "tensors", "the model holds none");
}

TEST_F(ReadModel, ASplitGgufByAnyPart) {
    folder.write("m-00001-of-00002.gguf", gguf_part("x", 0, 2));
    folder.write("m-00002-of-00002.gguf", gguf_part("y", 1, 2));
    for (const std::string name : {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf", ""}) {
        const Model model = read_model(folder.path(name));
        ASSERT_EQ(model.files.size(), 2U) << name;
        EXPECT_EQ(model.files[1].path, folder.path("m-00002-of-00002.gguf"));
        EXPECT_EQ(model.total_bytes, 64U);
        EXPECT_EQ(tensor_named(model, "y").file, 1U);
    }
}

TEST_F(ReadModel, ABadSplitGguf) {
    folder.write("m-00001-of-00002.gguf", gguf_part("x", 0, 2));
    expect_error("m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "file", "No such file");
    folder.write("m-00002-of-00002.gguf", gguf_part("x", 1, 2));
    expect_error("", "m-00002-of-00002.gguf", "tensor 'x'", "is also in '");
    folder.write("m-00002-of-00002.gguf", gguf_part("y", 0, 2));
    expect_error("m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "metadata 'split.no'", "says part 0");
    folder.write("m.gguf", gguf_part("x", 0, 2));
    expect_error("m.gguf", "m.gguf", "metadata 'split.count'", "does not end in -00001-of-00002.gguf");
    folder.write("n-00001-of-00003.gguf", gguf_part("x", 0, 2));
    expect_error("n-00001-of-00003.gguf", "n-00001-of-00003.gguf", "metadata 'split.count'", "does not end in");
}

TEST_F(ReadModel, SplitsAreSeveralModelsWhenTheirNamesDiffer) {
    folder.write("m-00001-of-00002.gguf", gguf_part("x", 0, 2));
    folder.write("m-00002-of-00002.gguf", gguf_part("y", 1, 2));
    folder.write("n-00001-of-00002.gguf", gguf_part("x", 0, 2));
    expect_error("", "", "folder", "('m-00001-of-00002.gguf', 'n-00001-of-00002.gguf')");
}

TEST_F(ReadModel, ObeysTheLimitOnHeaderBytes) {
    const std::string path = folder.write("model.safetensors", shard({"a"}));
    ReadOptions options;
    options.max_header_bytes = 10;
    EXPECT_EQ(error_of([&] { read_model(path, options); }).field(), "header length");
}

}  // namespace

}  // namespace stagehand::cli::model::test
