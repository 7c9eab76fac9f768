// The example engine on a small model: the same bits under every budget, and errors that name the mistake.
#include <cstring>
#include <regex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "minilm.h"
#include "small_model.h"

namespace {

using Vectors = std::vector<float>;

const std::vector<const char*> sentences = {
    "w5 w6 w7",
    "w1999 w1000 w64 w63 w65 w5",
    "[MASK]",
    "",
    "w10 w80 w150 w220 w290 w360 w430 w500 w570 w640 w710 w780 w850 w920 w990 w1060 w1130 w1200 w1270 w1340 "
    "w1410 w1480",
    "w5 w5 w5 unknown w5",
    "w11 w12 w13 w14 w15 w16 w17 w18 w19 w20 w21 w22 w23 w24 w25 w26 w27 w28 w29 w30 w31 w32 w33 w34 w35 w36 "
    "w37 w38 w39 w40 "
    "w41 w42 w43 w44 w45 w46 w47 w48 w49 w50 w51 w52 w53 w54 w55 w56 w57 w58 w59 w60",
};

weights_options options_of(std::uint64_t budget_bytes, bool learn_order = false) {
    return {.device = "host", .budget_percent = 0, .budget_bytes = budget_bytes, .learn_order = learn_order};
}

class Engine : public testing::Test {
protected:
    // Embeds all sentences twice, in steps of `batch`. Both results must be equal.
    Vectors embed(const weights_options& options, std::size_t batch, weights_report* out_report = nullptr) {
        engine* opened = nullptr;
        if (!engine_open(folder_.path().c_str(), &options, &opened, &error_)) {
            ADD_FAILURE() << error_.text;
            return {};
        }
        Vectors first(sentences.size() * engine_dimensions(opened));
        Vectors second(first.size());
        for (Vectors* vectors : {&first, &second})
            EXPECT_TRUE(engine_embed(opened, sentences.data(), sentences.size(), batch, vectors->data(), &error_))
                << error_.text;
        EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)), 0);
        if (out_report != nullptr) {
            EXPECT_TRUE(engine_read_report(opened, out_report, &error_)) << error_.text;
        }
        engine_close(opened);
        return first;
    }

    // Returns the reason why the model cannot be opened.
    std::string refusal(const weights_options& options) {
        engine* opened = nullptr;
        EXPECT_FALSE(engine_open(folder_.path().c_str(), &options, &opened, &error_));
        engine_close(opened);
        return error_.text;
    }

    // Returns the largest number in a text. In the text of a refused budget, this is the smallest budget that works.
    static std::uint64_t largest_number(const std::string& text) {
        std::uint64_t largest = 0;
        const std::regex digits("[0-9]+");
        for (std::sregex_iterator match(text.begin(), text.end(), digits), end; match != end; ++match)
            largest = std::max<std::uint64_t>(largest, std::stoull(match->str()));
        return largest;
    }

    SmallModel model_;
    ScratchFolder folder_;
    error error_{};
};

TEST_F(Engine, EveryBudgetGivesTheSameBits) {
    model_.write(folder_);
    weights_report report{};
    const Vectors resident = embed(options_of(0), 3, &report);
    ASSERT_FALSE(resident.empty());
    EXPECT_EQ(report.budget_bytes, 0U);
    const std::uint64_t model_bytes = report.model_bytes;

    const std::uint64_t smallest = largest_number(refusal(options_of(65536)));
    ASSERT_GT(smallest, 65536U);
    ASSERT_LT(smallest, model_bytes);
    for (const std::uint64_t budget :
         {smallest, smallest + 4096, model_bytes / 4, model_bytes / 3, model_bytes / 2, 2 * model_bytes}) {
        for (const bool learn_order : {false, true}) {
            SCOPED_TRACE(testing::Message()
                         << "budget " << budget << (learn_order ? ", order learned" : ", order told"));
            const Vectors streamed = embed(options_of(budget, learn_order), 3, &report);
            ASSERT_EQ(streamed.size(), resident.size());
            EXPECT_EQ(std::memcmp(streamed.data(), resident.data(), resident.size() * sizeof(float)), 0);
            EXPECT_LE(report.peak_device_bytes, budget);
            EXPECT_EQ(report.steps, 6U);
            if (budget < model_bytes / 2) {
                EXPECT_GT(report.copied_bytes, model_bytes);
            }
        }
    }
}

TEST_F(Engine, AVectorDoesNotDependOnItsNeighbours) {
    model_.write(folder_);
    const Vectors alone = embed(options_of(0), 1);
    for (const std::size_t batch : {2, 3, 100}) {
        const Vectors together = embed(options_of(0), batch);
        ASSERT_EQ(together.size(), alone.size());
        EXPECT_EQ(std::memcmp(together.data(), alone.data(), alone.size() * sizeof(float)), 0)
            << "in steps of " << batch;
    }
}

TEST_F(Engine, VectorsHaveLengthOneAndDiffer) {
    model_.write(folder_);
    const Vectors vectors = embed(options_of(0), 3);
    ASSERT_EQ(vectors.size(), sentences.size() * static_cast<std::size_t>(model_.hidden));
    for (std::size_t row = 0; row < sentences.size(); ++row) {
        double squares = 0;
        for (int i = 0; i < model_.hidden; ++i) squares += double{vectors[row * 64 + i]} * vectors[row * 64 + i];
        EXPECT_NEAR(squares, 1, 1e-5);
    }
    EXPECT_NE(std::memcmp(vectors.data(), vectors.data() + 64, 64 * sizeof(float)), 0);
}

TEST_F(Engine, ResidentLoadsEachByteOnce) {
    model_.write(folder_);
    weights_report report{};
    embed(options_of(0), 1, &report);
    EXPECT_LE(report.copied_bytes, report.model_bytes + report.model_bytes / 8)
        << "more than the model and some padding";
    EXPECT_GT(report.hits, report.misses);
}

TEST_F(Engine, TheBudgetMayBeAPercentage) {
    model_.write(folder_);
    weights_report report{};
    embed({.device = "host", .budget_percent = 40, .budget_bytes = 0, .learn_order = false}, 3, &report);
    EXPECT_EQ(report.budget_bytes, static_cast<std::uint64_t>(0.4 * static_cast<double>(report.model_bytes)));
    EXPECT_LE(report.peak_device_bytes, report.budget_bytes);
}

TEST_F(Engine, RefusesDevices) {
    model_.write(folder_);
    weights_options options = options_of(0);
    options.device = "nonsense:7";
    EXPECT_NE(refusal(options).find("device nonsense:7: SH_ERROR_NOT_FOUND: "), std::string::npos) << error_.text;
    options.device = "sim";
    EXPECT_NE(refusal(options).find("device sim: the host cannot read its memory"), std::string::npos) << error_.text;
}

TEST_F(Engine, TellsTheSmallestBudget) {
    model_.write(folder_);
    const std::string reason = refusal(options_of(65536));
    EXPECT_NE(reason.find("SH_ERROR_BUDGET"), std::string::npos) << reason;
    const std::uint64_t smallest = largest_number(reason);
    EXPECT_FALSE(embed(options_of(smallest), 3).empty());
    EXPECT_NE(refusal(options_of(smallest - 1)).find("SH_ERROR_BUDGET"), std::string::npos) << error_.text;
}

TEST_F(Engine, NamesATensorOfTheWrongShapeOrMissing) {
    const std::string name = "encoder.layer.1.intermediate.dense.weight";
    model_.shapes[name] = {64, 256};
    model_.write(folder_);
    EXPECT_NE(refusal(options_of(0)).find("tensor " + name + " is F32 [64, 256], expected F32 [256, 64]"),
              std::string::npos)
        << error_.text;
    model_.shapes.erase(name);
    model_.write(folder_);
    EXPECT_NE(refusal(options_of(0)).find("no tensor " + name), std::string::npos) << error_.text;
}

TEST_F(Engine, NamesAMissingFile) {
    for (const char* name :
         {"model.safetensors", "vocab.txt", "config.json", "modules.json", "1_Pooling/config.json"}) {
        model_.write(folder_);
        std::filesystem::remove(folder_.path(name));
        EXPECT_EQ(refusal(options_of(0)), folder_.path(name) + ": No such file or directory");
    }
}

TEST_F(Engine, RefusesWhatItDoesNotCompute) {
    const auto refused = [&](const char* name, const char* contents) {
        model_.write(folder_);
        folder_.write(name, contents);
        return refusal(options_of(0));
    };
    EXPECT_NE(refused("1_Pooling/config.json", R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true})")
                  .find("pooling_mode_cls_token is true"),
              std::string::npos)
        << error_.text;
    EXPECT_NE(refused("1_Pooling/config.json", "{}").find("pooling_mode_mean_tokens is not true"), std::string::npos)
        << error_.text;
    EXPECT_NE(refused("modules.json", R"([{"type": "x.Transformer"}, {"type": "x.Pooling"}])").find("2 modules"),
              std::string::npos)
        << error_.text;
    EXPECT_NE(refused("config.json", R"({"num_hidden_layers": 0})").find("num_hidden_layers must be"),
              std::string::npos)
        << error_.text;
    EXPECT_NE(refused("config.json", "[").find("not valid JSON"), std::string::npos) << error_.text;
    EXPECT_NE(refused("sentence_bert_config.json", R"({"max_seq_length": 1000})").find("max_seq_length 1000"),
              std::string::npos)
        << error_.text;
    EXPECT_NE(refused("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
                  .find("5 lines, but config.json says vocab_size 2000"),
              std::string::npos)
        << error_.text;
}

}  // namespace
