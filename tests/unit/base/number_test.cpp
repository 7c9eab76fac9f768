// Numbers are read and written in one way, whatever locale the engine has set.
#include "base/number.h"

#include <cstdint>
#include <string>

#include <gtest/gtest.h>
#include <stagehand/base.h>

#include "../comma_locale.h"
#include "base/log.h"
#include "base/plain_format.h"

namespace stagehand {
namespace {

TEST(Number, is_decimal_and_nothing_else) {
    EXPECT_EQ(read_number<uint64_t>("18446744073709551615"), UINT64_MAX);
    EXPECT_EQ(read_number<int>("-7"), -7);
    EXPECT_EQ(read_number<double>("1e3"), 1000);
    for (const char* text : {"", " 1", "1 ", "+1", "0x10", "1,5", "1.5", "-1", "1_0", "18446744073709551616"})
        EXPECT_FALSE(read_number<uint64_t>(text)) << text;
    for (const char* text : {"", " 0.5", "0.5 ", "+0.5", "0x10", "0,5", "1e999"})
        EXPECT_FALSE(read_number<double>(text)) << text;
}

TEST(Number, is_taken_from_the_front) {
    std::string_view text = "1f-20 rest";
    EXPECT_EQ(take_number<uint64_t>(&text, 16), 0x1fu);
    EXPECT_EQ(text, "-20 rest");
    EXPECT_FALSE(take_number<uint64_t>(&text));
    EXPECT_EQ(text, "-20 rest") << "nothing was taken";
    EXPECT_EQ(take_number<int>(&text), -20);
    EXPECT_EQ(text, " rest");
}

TEST(Number, is_the_same_in_every_locale) {
    const test::CommaLocale comma;
    if (!comma.is_set()) GTEST_SKIP() << "a locale with a comma cannot be made here";
    EXPECT_EQ(read_number<double>("0.5"), 0.5);
    char text[16];
    plain_format(text, sizeof text, "%.1f", 1.5);
    EXPECT_STREQ(text, "1.5");
    std::string logged;
    set_log(
        SH_LOG_INFO, [](int32_t, const char* message, void* to) { *static_cast<std::string*>(to) = message; }, &logged);
    log_line(SH_LOG_INFO, "%.1f", 2.5);
    set_log(0, nullptr, nullptr);
    EXPECT_EQ(logged, "2.5");
    std::snprintf(text, sizeof text, "%.1f", 1.5);
    EXPECT_STREQ(text, "1,5") << "the engine's own locale stays";
}

}  // namespace
}  // namespace stagehand
