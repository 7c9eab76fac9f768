// UTF-8, and text that is safe to print.
#include "model/text.h"

#include <gtest/gtest.h>

#include <string>

#include "model/error.h"

namespace stagehand::cli::model::test {

namespace {

TEST(Text, KnowsWellFormedUtf8) {
    for (const std::string good : {"", "a", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                                   "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "a\xc3\xbc\xe4\xbd\xa0"}) {
        EXPECT_TRUE(is_utf8(good)) << printable(good);
    }
}

TEST(Text, KnowsWhatIsNoUtf8) {
    // Continuations alone, overlong forms, surrogates, beyond U+10FFFF, cut short.
    for (const std::string bad :
         {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc3", "\xe4\xbd", "\xf0\x90\x80", "\xc3(", "a\xe4(b"}) {
        EXPECT_FALSE(is_utf8(bad)) << printable(bad);
    }
}

TEST(Text, EscapesWhatATerminalWouldObey) {
    EXPECT_EQ(printable(std::string("a\x1b[31m\n\0z", 9)), "a\\x1b[31m\\x0a\\x00z");
    EXPECT_EQ(printable("\x7f|\xc2\x9b|\xff|\xc3\xbc"), "\\x7f|\\xc2\\x9b|\\xff|\xc3\xbc");
}

TEST(Text, CutsBetweenCharacters) {
    EXPECT_EQ(printable("abcdef", 6), "abcdef");
    EXPECT_EQ(printable("abcdef", 4), "abcd...");
    EXPECT_EQ(printable("ab\xe4\xbd\xa0", 4), "ab...");
    EXPECT_EQ(printable("ab\n", 4), "ab...");
}

TEST(Text, ErrorsAreOneSafeLine) {
    const ModelError error("dir/a\nb", "tensor 'x\x1b'", "is\twrong");
    EXPECT_STREQ(error.what(), "dir/a\\x0ab: tensor 'x\\x1b': is\\x09wrong");
    EXPECT_EQ(error.field(), "tensor 'x\\x1b'");
}

}  // namespace

}  // namespace stagehand::cli::model::test
