// The files that a program names: which files of a folder hold its model.
#include "model/read_model.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "model_files.h"

namespace stagehand::cli::model::test {

namespace {

namespace fs = std::filesystem;

const std::string first = "m-1.safetensors";
const std::string second = "m-2.safetensors";
const std::string index_file = "model.safetensors.index.json";
const std::string index_text =
    R"({"weight_map":{"a":")" + first + R"(","b":")" + second + R"(","c":")" + second + R"("}})";

class ReadWeights : public testing::Test {
protected:
    // A file of byte tensors, eight bytes each.
    void write(const std::string& name, const std::vector<std::string>& tensors) {
        std::string header = "{";
        std::uint64_t at = 0;
        for (const std::string& tensor : tensors) {
            header += (at == 0 ? "" : ",") + entry(tensor, "U8", "[8]", at, at + 8);
            at += 8;
        }
        folder.write(name, safetensors(header + "}", at));
    }

    void write_sharded(const std::string& in = {}, const std::string& index = index_file) {
        write(in + first, {"a"});
        write(in + second, {"b", "c"});
        folder.write(in + index, index_text);
    }

    Model read(const std::vector<std::string>& names) {
        std::vector<std::string> paths;
        for (const std::string& name : names) {
            paths.push_back(folder.path(name));
        }
        return read_weights(paths);
    }

    // The names of the files that were read.
    std::vector<std::string> files(const std::vector<std::string>& names) {
        std::vector<std::string> found;
        for (const ModelFile& file : read(names).files) {
            found.push_back(fs::relative(file.path, folder.path()).string());
        }
        return found;
    }

    using Names = std::vector<std::string>;
    TemporaryFolder folder;
};

TEST_F(ReadWeights, AnIndexComesBeforeEverythingElse) {
    write_sharded();
    write("model.safetensors", {"a", "b", "c"});
    write("stale.safetensors", {"a", "d"});
    folder.write("broken.safetensors", "no header");
    folder.write("other.gguf", "GGUF");
    EXPECT_EQ(files({""}), (Names{first, second}));
    EXPECT_EQ(files({index_file}), (Names{first, second}));
}

TEST_F(ReadWeights, TheWholeModelComesBeforeOtherFilesAndVariants) {
    write_sharded({}, "model.safetensors.index.fp16.json");
    write("model.safetensors", {"a"});
    EXPECT_EQ(files({""}), (Names{"model.safetensors"}));
    fs::remove(folder.path("model.safetensors"));
    EXPECT_EQ(files({""}), (Names{first, second}));
    fs::remove(folder.path("model.safetensors.index.fp16.json"));
    write("aside.safetensors", {"d"});
    EXPECT_EQ(files({""}), (Names{"aside.safetensors", first, second}));
}

TEST_F(ReadWeights, SeveralModelsAreAChoice) {
    write("model.safetensors", {"a"});
    write("diffusion_pytorch_model.safetensors", {"a"});
    const ModelError error = error_of([&] { read({""}); });
    EXPECT_NE(error.message().find("('model.safetensors', 'diffusion_pytorch_model.safetensors')"), std::string::npos)
        << error.what();
    folder.write("x.safetensors.index.json", "{}");
    folder.write("y.safetensors.index.json", "{}");
    EXPECT_NE(error_of([&] { read({""}); }).message().find("('x.safetensors.index.json', 'y."), std::string::npos);
}

TEST_F(ReadWeights, SeveralPathsAreOneModel) {
    write_sharded("one/");
    write_sharded("two/");
    write("more.safetensors", {"d"});
    const Model model = read({"more.safetensors", "one"});
    EXPECT_EQ(model.tensors.size(), 4U);
    EXPECT_EQ(tensor_named(model, "b").file, 2U);
    const ModelError error = error_of([&] { read({"one", "more.safetensors", "two"}); });
    EXPECT_EQ(error.file(), folder.path("two/" + first)) << error.what();
    EXPECT_NE(error.message().find("is also in"), std::string::npos) << error.what();
}

TEST_F(ReadWeights, EachIndexIsHeldAgainstItsOwnShards) {
    write_sharded("one/");
    write("more.safetensors", {"d"});
    write("one/" + second, {"b"});
    const ModelError error = error_of([&] { read({"more.safetensors", "one"}); });
    EXPECT_EQ(error.field(), "weight_map: 'c'") << error.what();
    write("one/" + second, {"b", "c", "d"});
    EXPECT_NE(error_of([&] {
                  read({"more.safetensors", "one"});
              })
                  .message()
                  .find("is not in the index"),
              std::string::npos);
}

TEST_F(ReadWeights, WhatIsAbsentHasTheSystemsNumber) {
    EXPECT_EQ(error_of([&] { read({"absent"}); }).system_error(), ENOENT);
    EXPECT_EQ(error_of([&] { read({""}); }).system_error(), ENOENT);
    write_sharded();
    fs::remove(folder.path(second));
    const ModelError error = error_of([&] { read({""}); });
    EXPECT_EQ(error.file(), folder.path(second));
    EXPECT_EQ(error.system_error(), ENOENT);
    folder.write(second, "no header");
    EXPECT_EQ(error_of([&] { read({""}); }).system_error(), 0);
}

TEST_F(ReadWeights, TensorsMayBeEmptyOrAbsent) {
    folder.write("none.safetensors", safetensors("{}"));
    EXPECT_TRUE(read({"none.safetensors"}).tensors.empty());
}

}  // namespace

}  // namespace stagehand::cli::model::test
