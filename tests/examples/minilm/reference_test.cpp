// Compares the example engine on the real model with the results of the model's own package. make_reference.py wrote
// the data.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "minilm.h"

namespace {

constexpr int skipped = 77;
constexpr std::size_t dimensions = 384;
constexpr std::size_t max_tokens = 256;

std::string model_folder() {
    const char* set = std::getenv("STAGEHAND_MINILM_DIR");
    return set != nullptr ? set : MINILM_DEFAULT_MODEL;
}

std::string read_data(const std::string& name) {
    std::ifstream file(std::string(MINILM_TEST_DATA) + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> read_sentences() {
    std::vector<std::string> lines;
    std::ifstream file(std::string(MINILM_TEST_DATA) + "/sentences.txt");
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
}

class Reference : public testing::Test {
protected:
    Reference() : sentences_(read_sentences()) {
        for (const std::string& sentence : sentences_) pointers_.push_back(sentence.c_str());
    }

    // Embeds all sentences in steps of eight.
    std::vector<float> embed(double budget_percent, bool learn_order = false) {
        const weights_options options{
            .device = "host", .budget_percent = budget_percent, .budget_bytes = 0, .learn_order = learn_order};
        engine* opened = nullptr;
        if (!engine_open(model_folder().c_str(), &options, &opened, &error_)) {
            ADD_FAILURE() << error_.text;
            return {};
        }
        std::vector<float> vectors(sentences_.size() * dimensions);
        EXPECT_EQ(engine_dimensions(opened), dimensions);
        EXPECT_TRUE(engine_embed(opened, pointers_.data(), pointers_.size(), 8, vectors.data(), &error_))
            << error_.text;
        EXPECT_TRUE(engine_read_report(opened, &report_, &error_)) << error_.text;
        engine_close(opened);
        return vectors;
    }

    std::vector<std::string> sentences_;
    std::vector<const char*> pointers_;
    weights_report report_{};
    error error_{};
};

TEST_F(Reference, TokensAreThePackages) {
    tokenizer* opened = nullptr;
    ASSERT_TRUE(tokenizer_open((model_folder() + "/vocab.txt").c_str(), &opened, &error_)) << error_.text;
    const auto cases = nlohmann::json::parse(read_data("tokens.json"));
    ASSERT_GE(cases.size(), 100U);
    for (const auto& wanted : cases) {
        const std::string text = wanted["text"];
        tokens encoded{};
        ASSERT_TRUE(tokenizer_encode(opened, text.data(), text.size(), max_tokens, &encoded, &error_)) << error_.text;
        EXPECT_EQ(std::vector<std::int32_t>(encoded.ids, encoded.ids + encoded.count),
                  wanted["ids"].get<std::vector<std::int32_t>>())
            << wanted["text"];
        std::free(encoded.ids);
    }
    tokenizer_close(opened);
}

TEST_F(Reference, VectorsUnderAQuarterAreThePackages) {
    const std::string data = read_data("embeddings.f32");
    ASSERT_EQ(sentences_.size(), 20U);
    ASSERT_EQ(data.size(), sentences_.size() * dimensions * sizeof(float));
    std::vector<float> wanted(sentences_.size() * dimensions);
    std::memcpy(wanted.data(), data.data(), data.size());

    const std::vector<float> vectors = embed(25);
    ASSERT_EQ(vectors.size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i)
        ASSERT_NEAR(vectors[i], wanted[i], 1e-5) << "sentence " << i / dimensions << ", number " << i % dimensions;
    EXPECT_EQ(report_.budget_bytes, report_.model_bytes / 4);
    EXPECT_LE(report_.peak_device_bytes, report_.budget_bytes);
    EXPECT_GT(report_.copied_bytes, report_.budget_bytes);
}

TEST_F(Reference, EveryBudgetGivesTheBitsOfTheResidentRun) {
    const std::vector<float> resident = embed(0);
    EXPECT_LE(report_.peak_device_bytes, report_.model_bytes);
    for (const double percent : {10.0, 15.0, 25.0, 40.0, 60.0, 100.0}) {
        for (const bool learn_order : {false, true}) {
            SCOPED_TRACE(testing::Message() << percent << " %" << (learn_order ? ", order learned" : ", order told"));
            const std::vector<float> streamed = embed(percent, learn_order);
            ASSERT_EQ(streamed.size(), resident.size());
            EXPECT_EQ(std::memcmp(streamed.data(), resident.data(), resident.size() * sizeof(float)), 0);
            EXPECT_LE(report_.peak_device_bytes, report_.budget_bytes);
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    if (!std::filesystem::exists(model_folder() + "/model.safetensors")) {
        std::printf("skipped: no model in %s (set STAGEHAND_MINILM_DIR)\n", model_folder().c_str());
        return skipped;
    }
    return RUN_ALL_TESTS();
}
