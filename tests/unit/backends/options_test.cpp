#include "support/options.h"

#include <gtest/gtest.h>

#include <cstring>

#include "../comma_locale.h"
#include "support/last_error.h"

namespace stagehand::support {
namespace {

Options parsed(const char* text) {
    Options options;
    EXPECT_EQ(Options::parse(text, &options), SH_OK) << last_error();
    return options;
}

// Returns the value of `text`, or the text of the failure.
uint64_t bytes_of(const char* text) {
    uint64_t value = 0;
    EXPECT_EQ(parsed((std::string("k=") + text).c_str()).take_bytes("k", &value), SH_OK) << last_error();
    return value;
}

TEST(Options, ReadsPairs) {
    Options options = parsed(" capacity = 4096 ;; poison=1; wrap=host; ");
    uint64_t capacity = 0;
    bool poison = false;
    std::string wrap;
    EXPECT_EQ(options.take_bytes("capacity", &capacity), SH_OK);
    EXPECT_EQ(options.take_flag("poison", &poison), SH_OK);
    options.take_text("wrap", &wrap);
    EXPECT_EQ(capacity, 4096u);
    EXPECT_TRUE(poison);
    EXPECT_EQ(wrap, "host");
    EXPECT_EQ(options.finish("none"), SH_OK);
}

TEST(Options, Bytes) {
    EXPECT_EQ(bytes_of("0"), 0u);
    EXPECT_EQ(bytes_of("512B"), 512u);
    EXPECT_EQ(bytes_of("64KiB"), 65536u);
    EXPECT_EQ(bytes_of("3 MiB"), 3u << 20);
    EXPECT_EQ(bytes_of("1.5GiB"), 3ull << 29);
    EXPECT_EQ(bytes_of("2GB"), 2000000000u);
    EXPECT_EQ(bytes_of("1e6"), 1000000u);
    EXPECT_EQ(bytes_of("16777215TiB"), 16777215ull << 40);
    EXPECT_EQ(bytes_of("18446744073709551615"), UINT64_MAX) << "whole numbers are exact";
}

TEST(Options, DoNotDependOnTheLocale) {
    const test::CommaLocale comma;
    if (!comma.is_set()) GTEST_SKIP() << "a locale with a comma cannot be made here";
    EXPECT_EQ(bytes_of("1.5KiB"), 1536u);
    double real = 0;
    EXPECT_LT(parsed("r=3").take_real("r", 0.5, 2, &real), 0);
    EXPECT_NE(std::strstr(last_error(), "from 0.5 to 2"), nullptr) << last_error();
}

TEST(Options, BadBytesAreNamed) {
    for (const char* text : {"", "x", "-1", "KiB", "1KIB", "1 parsec", "18446744073709551616", "16777216TiB", "1e30",
                             "nan", "inf", "0x10", "1.5.5", "+3"}) {
        uint64_t value = 99;
        EXPECT_EQ(parsed((std::string("size=") + text).c_str()).take_bytes("size", &value), SH_ERROR_INVALID_ARGUMENT)
            << text;
        EXPECT_NE(std::strstr(last_error(), "size"), nullptr) << last_error();
        EXPECT_NE(std::strstr(last_error(), text), nullptr) << last_error();
    }
}

TEST(Options, BadValuesOfOtherKindsAreNamed) {
    uint64_t number = 0;
    int64_t negative = 0;
    bool flag = false;
    double real = 0;
    EXPECT_LT(parsed("n=12x").take_number("n", &number), 0);
    EXPECT_NE(std::strstr(last_error(), "option n: '12x'"), nullptr) << last_error();
    EXPECT_LT(parsed("s=--1").take_signed("s", &negative), 0);
    EXPECT_LT(parsed("f=yes").take_flag("f", &flag), 0);
    EXPECT_LT(parsed("r=2.5").take_real("r", 1, 2, &real), 0);
    EXPECT_NE(std::strstr(last_error(), "from 1 to 2"), nullptr) << last_error();
    EXPECT_LT(parsed("t=5 weeks").take_duration("t", 1, &number), 0);
    EXPECT_EQ(parsed("s=-401").take_signed("s", &negative), SH_OK);
    EXPECT_EQ(negative, -401);
}

TEST(Options, UnknownKeysAreNamed) {
    Options options = parsed("capacity=1;capasity=2");
    uint64_t value = 0;
    EXPECT_EQ(options.take_bytes("capacity", &value), SH_OK);
    EXPECT_EQ(options.finish("capacity, page"), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_STREQ(last_error(), "option capasity is unknown; known options: capacity, page");
}

TEST(Options, WhatIsNotAPairIsNamed) {
    Options options;
    for (const char* text : {"poison", "=1", "a=1;b"}) {
        EXPECT_EQ(Options::parse(text, &options), SH_ERROR_INVALID_ARGUMENT) << text;
        EXPECT_NE(std::strstr(last_error(), "key=value"), nullptr) << last_error();
    }
    EXPECT_EQ(Options::parse("a=1;a=2", &options), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::strstr(last_error(), "a is given twice"), nullptr) << last_error();
}

TEST(Options, TheRestCanBePassedOn) {
    Options options = parsed("wrap=sim; capacity=1GiB ;latency=5us");
    std::string wrap;
    options.take_text("wrap", &wrap);
    EXPECT_EQ(options.rest(), "capacity=1GiB;latency=5us");
    EXPECT_EQ(parsed("").rest(), "");
}

}  // namespace
}  // namespace stagehand::support
