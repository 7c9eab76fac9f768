// The example's tokenizer, on a vocabulary of a few pieces.
#include <cstdlib>
#include <vector>

#include <gtest/gtest.h>

#include "minilm.h"
#include "scratch_folder.h"

namespace {

constexpr std::size_t max_tokens = 8;

enum Id : std::int32_t {
    pad_id,
    unknown_id,
    classify_id,
    separate_id,
    mask_id,
    un_id,
    able_id,
    unable_id,
    dash_id,
    e_id,
    city_id,
    a_id,
    more_a_id
};
const char vocabulary[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##able\nunable\n-\ne\n京\na\n##a\n";

class Tokenizer : public testing::Test {
protected:
    ~Tokenizer() override { tokenizer_close(tokenizer_); }

    void SetUp() override {
        ASSERT_TRUE(tokenizer_open(folder_.write("vocab.txt", vocabulary).c_str(), &tokenizer_, &error_))
            << error_.text;
    }

    // Checks [CLS] and [SEP] and returns the pieces without them.
    std::vector<std::int32_t> pieces(const std::string& text) {
        tokens encoded{};
        if (!tokenizer_encode(tokenizer_, text.data(), text.size(), max_tokens, &encoded, &error_)) {
            ADD_FAILURE() << error_.text;
            return {};
        }
        const std::vector<std::int32_t> ids(encoded.ids, encoded.ids + encoded.count);
        std::free(encoded.ids);
        EXPECT_GE(ids.size(), 2U);
        EXPECT_EQ(ids.front(), classify_id);
        EXPECT_EQ(ids.back(), separate_id);
        return {ids.begin() + 1, ids.end() - 1};
    }

    using Ids = std::vector<std::int32_t>;
    ScratchFolder folder_;
    tokenizer* tokenizer_ = nullptr;
    error error_{};
};

TEST_F(Tokenizer, TakesTheLongestPiecesFromTheLeft) {
    EXPECT_EQ(pieces("unable"), Ids({unable_id}));
    EXPECT_EQ(pieces("una"), Ids({un_id, more_a_id}));
    EXPECT_EQ(pieces("aable"), Ids({a_id, able_id}));
    EXPECT_EQ(pieces("aaa a"), Ids({a_id, more_a_id, more_a_id, a_id}));
}

TEST_F(Tokenizer, AWordWithoutPiecesIsOneUnknown) {
    EXPECT_EQ(pieces("unx a"), Ids({unknown_id, a_id}));
    EXPECT_EQ(pieces("able"), Ids({unknown_id}));
}

TEST_F(Tokenizer, AWordOfMoreThan100CharactersIsUnknown) {
    EXPECT_EQ(pieces(std::string(100, 'a')), Ids({a_id, more_a_id, more_a_id, more_a_id, more_a_id, more_a_id}));
    EXPECT_EQ(pieces(std::string(101, 'a')), Ids({unknown_id}));
}

TEST_F(Tokenizer, LowersCaseAndDropsAccentsAndControls) {
    EXPECT_EQ(pieces("UNABLE"), Ids({unable_id}));
    EXPECT_EQ(pieces("É e\u0301 ế"), Ids({e_id, e_id, e_id}));
    EXPECT_EQ(pieces(std::string("u\0n\x01\x7f", 5)), Ids({un_id}));
    EXPECT_EQ(pieces("\u0301"), Ids({}));
}

TEST_F(Tokenizer, PunctuationAndIdeographsStandAlone) {
    EXPECT_EQ(pieces("un-able"), Ids({un_id, dash_id, unknown_id}));
    EXPECT_EQ(pieces("a京京a"), Ids({a_id, city_id, city_id, a_id}));
    EXPECT_EQ(pieces("--"), Ids({dash_id, dash_id}));
}

TEST_F(Tokenizer, BytesThatAreNotUtf8AreDropped) {
    EXPECT_EQ(pieces("u\xffn"), Ids({un_id}));
    EXPECT_EQ(pieces("a\xe4\xba"), Ids({a_id}));
    EXPECT_EQ(pieces("\xed\xa0\x80 a"), Ids({a_id}));
}

TEST_F(Tokenizer, MarksStandForThemselves) {
    EXPECT_EQ(pieces("a[MASK]a"), Ids({a_id, mask_id, a_id}));
    EXPECT_EQ(pieces("[SEP][PAD]"), Ids({separate_id, pad_id}));
    EXPECT_EQ(pieces("[mask"), Ids({unknown_id, unknown_id}));
    EXPECT_EQ(pieces("[MASK"), Ids({unknown_id, unknown_id}));
}

TEST_F(Tokenizer, CutsLongSentencesAndKeepsTheSeparator) {
    EXPECT_EQ(pieces("a a a a a a a a a"), Ids(max_tokens - 2, a_id));
    EXPECT_EQ(pieces("a a a a a unx un"), Ids({a_id, a_id, a_id, a_id, a_id, unknown_id}));
    // The text is cut inside a word that turns out to have no pieces.
    EXPECT_EQ(pieces("a a a a a aaax"), Ids({a_id, a_id, a_id, a_id, a_id, unknown_id}));
    EXPECT_EQ(pieces(""), Ids({}));
}

TEST(TokenizerFile, NamesWhatIsMissing) {
    const ScratchFolder folder;
    tokenizer* opened = nullptr;
    error failure{};
    EXPECT_FALSE(tokenizer_open(folder.path("vocab.txt").c_str(), &opened, &failure));
    EXPECT_EQ(std::string(failure.text), folder.path("vocab.txt") + ": No such file or directory");
    EXPECT_FALSE(tokenizer_open(folder.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[MASK]\n").c_str(), &opened, &failure));
    EXPECT_EQ(std::string(failure.text), folder.path("vocab.txt") + ": no line [SEP]");
}

TEST(TokenizerFile, LinesMayEndInCarriageReturns) {
    const ScratchFolder folder;
    tokenizer* opened = nullptr;
    error failure{};
    ASSERT_TRUE(tokenizer_open(folder.write("vocab.txt", "[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n[MASK]").c_str(), &opened,
                               &failure))
        << failure.text;
    EXPECT_EQ(tokenizer_size(opened), 5U);
    tokenizer_close(opened);
}

}  // namespace
