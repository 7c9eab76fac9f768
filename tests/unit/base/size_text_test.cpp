// Sizes as they appear in messages.
#include "base/size_text.h"

#include <gtest/gtest.h>

#include "../comma_locale.h"

namespace stagehand {
namespace {

TEST(SizeText, is_short) {
    EXPECT_EQ(size_text(0), "0 bytes");
    EXPECT_EQ(size_text(1), "1 byte");
    EXPECT_EQ(size_text(4096), "4096 bytes");
    EXPECT_EQ(size_text(9'999), "9999 bytes");
    EXPECT_EQ(size_text(10'000), "9.77 KiB");
    EXPECT_EQ(size_text(163'840), "160 KiB");
    EXPECT_EQ(size_text(22'720'000), "21.7 MiB");
    EXPECT_EQ(size_text(uint64_t(1) << 30), "1.00 GiB");
    EXPECT_EQ(size_text((uint64_t(1) << 30) - 1), "1.00 GiB");
    EXPECT_EQ(size_text(uint64_t(1002) << 20), "1002 MiB");
    EXPECT_EQ(size_text(UINT64_MAX), "16.0 EiB");
}

TEST(SizeText, is_the_same_in_every_locale) {
    const test::CommaLocale comma;
    if (!comma.is_set()) GTEST_SKIP() << "a locale with a comma cannot be made here";
    EXPECT_EQ(size_text(22'720'000), "21.7 MiB");
}

TEST(SizeText, can_be_typed_where_that_is_wanted) {
    EXPECT_EQ(exact_size_text(5'000), "5000 bytes");
    EXPECT_EQ(exact_size_text(163'840), "160 KiB (163840 bytes)");
    EXPECT_EQ(exact_size_text(UINT64_MAX), "16.0 EiB (18446744073709551615 bytes)");
}

}  // namespace
}  // namespace stagehand
