// sh_unpack(): every range of a packed tensor, and what is none.
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <stagehand/stagehand.h>

#include "codec/chunk.h"
#include "codec/frame.h"

namespace stagehand {
namespace {

class Unpack : public testing::Test {
protected:
    Unpack() : contents_(600'000) {
        std::mt19937 random(1);
        for (size_t i = 0; i < contents_.size(); i += 2) {
            contents_[i] = static_cast<uint8_t>(random());
            contents_[i + 1] = static_cast<uint8_t>(0x3c | (random() & 1));
        }
        EXPECT_TRUE(codec::pack_frame(codec::FloatFormat::bf16, contents_.data(), contents_.size(), 1, &packed_).ok());
        EXPECT_LT(packed_.size(), contents_.size() * 3 / 4);
    }
    sh_status unpack(uint64_t offset, uint64_t bytes) {
        found_.assign(bytes, 0xee);
        return sh_unpack(packed_.data(), packed_.size(), offset, bytes, found_.data());
    }
    static std::string why() {
        char text[512] = "";
        sh_last_error(text, sizeof text);
        return text;
    }

    std::vector<uint8_t> contents_, packed_, found_;
};

TEST_F(Unpack, EveryRangeIsWhatWasPacked) {
    std::mt19937 random(2);
    for (int round = 0; round < 200; round++) {
        const uint64_t offset = round ? random() % contents_.size() : 0;
        const uint64_t bytes = round ? random() % (contents_.size() - offset + 1) : contents_.size();
        ASSERT_EQ(unpack(offset, bytes), SH_OK) << why();
        ASSERT_EQ(std::memcmp(found_.data(), contents_.data() + offset, bytes), 0) << offset << ", " << bytes;
    }
    EXPECT_EQ(sh_unpack(packed_.data(), packed_.size(), contents_.size(), 0, nullptr), SH_OK);
}

TEST_F(Unpack, RangesBehindTheContentsAreNamed) {
    EXPECT_EQ(unpack(599'999, 2), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(why(),
              "2 bytes from byte 599999 on end behind the contents of the packed tensor, which are 600000 bytes");
    EXPECT_EQ(sh_unpack(packed_.data(), packed_.size(), UINT64_MAX, 1, found_.data()), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(sh_unpack(nullptr, 100, 0, 1, found_.data()), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(why(), "packed is NULL");
    EXPECT_EQ(sh_unpack(packed_.data(), packed_.size(), 0, 1, nullptr), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(why(), "out is NULL");
}

TEST_F(Unpack, WhatIsNoPackedTensorIsASourceThatCannotBeRead) {
    EXPECT_EQ(sh_unpack(packed_.data(), 0, 0, 0, nullptr), SH_ERROR_SOURCE);
    EXPECT_EQ(sh_unpack(packed_.data(), packed_.size() - 16, 0, 0, nullptr), SH_ERROR_SOURCE);
    EXPECT_EQ(sh_unpack(contents_.data(), contents_.size(), 0, 0, nullptr), SH_ERROR_SOURCE);
    packed_[packed_.size() / 2] ^= 4;
    EXPECT_EQ(unpack(0, contents_.size()), SH_ERROR_SOURCE) << "a bit has flipped";
}

}  // namespace
}  // namespace stagehand
