// The GPU's program that unpacks frames, against lib/codec.
#include <cstring>
#include <memory>
#include <random>

#include <gtest/gtest.h>

#include "../unit/codec/weights.h"
#include "codec/tile.h"
#include "unpack_program.h"

namespace stagehand::test {
namespace {

using namespace codec;

constexpr uint64_t kMost = 64 << 20;

class Unpack : public testing::TestWithParam<FloatFormat> {
protected:
    void SetUp() override {
        try {
            program_ = std::make_unique<UnpackProgram>(kMost);
        } catch (const std::runtime_error& problem) {
            GTEST_SKIP() << problem.what();
        }
    }
    std::vector<uint8_t> packed(const std::vector<uint8_t>& contents) const {
        std::vector<uint8_t> frame;
        EXPECT_TRUE(pack_frame(format_, contents.data(), contents.size(), 1, &frame).ok());
        return frame;
    }
    uint32_t tiles_of(const std::vector<uint8_t>& contents) const {
        const uint64_t tile = uint64_t(kTileElements) * fields_of(format_).bytes();
        return static_cast<uint32_t>((contents.size() + tile - 1) / tile);
    }
    void expect_contents(std::vector<uint8_t> contents, uint32_t groups) {
        program_->write(packed(contents), contents.size());
        program_->run(format_, tiles_of(contents), groups);
        EXPECT_FALSE(program_->failed());
        contents.resize(contents.size() + UnpackProgram::kGuard, UnpackProgram::kUntouched);
        EXPECT_TRUE(program_->read() == contents) << contents.size();
    }

    const FloatFormat format_ = GetParam();
    std::unique_ptr<UnpackProgram> program_;
};

TEST_P(Unpack, gives_contents_of_any_size) {
    for (uint64_t elements = 1; elements <= 130; elements++)
        expect_contents(codec::test::weights(format_, elements, static_cast<uint32_t>(elements)), 1);
    for (const uint64_t elements : {8191, 8192, 8193, 3 * 8192 + 77, 1000 * 8192 + 5})
        for (const uint32_t groups : {1, 7, 100'000})
            expect_contents(codec::test::weights(format_, elements, static_cast<uint32_t>(elements)), groups);
}

TEST_P(Unpack, gives_any_bits) {
    expect_contents(codec::test::any_bits(format_, 5 * 8192 + 3, 2), 3);
    // Packed and raw tiles in turn, NaNs and denormals among them.
    std::vector<uint8_t> contents;
    for (uint32_t tile = 0; tile < 9; tile++) {
        const std::vector<uint8_t> part = tile % 2
                                              ? codec::test::any_bits(format_, 8192, tile)
                                              : codec::test::weights(format_, 8192, tile, tile % 3 ? 0.02f : 1e-38f);
        contents.insert(contents.end(), part.begin(), part.end());
    }
    expect_contents(contents, 2);
}

// What the host refuses is refused, and what it takes has the same contents.
TEST_P(Unpack, takes_and_refuses_what_the_host_does) {
    std::mt19937 random(3);
    const std::vector<uint8_t> contents = codec::test::weights(format_, 3 * 8192 + 40, 4, 3);
    const std::vector<uint8_t> frame = packed(contents);
    Frame opened;
    ASSERT_TRUE(Frame::open(frame, &opened).ok());
    const uint64_t tile = uint64_t(kTileElements) * fields_of(format_).bytes(), begin = 64 + 4 * 8;
    int refused = 0;
    for (int round = 0; round < 400; round++) {
        std::vector<uint8_t> other = frame;
        // A bit of a tile's header in every second round, and anywhere in the tiles otherwise.
        uint32_t unit = 0;
        std::memcpy(&unit, other.data() + 64 + random() % 4 * 8, sizeof unit);
        const uint64_t at = round % 2 ? uint64_t(unit) * 16 + random() % 16 : begin + random() % (other.size() - begin);
        other[at] ^= static_cast<uint8_t>(1 << random() % 8);
        std::vector<uint8_t> expected(contents.size() + UnpackProgram::kGuard, UnpackProgram::kUntouched);
        bool good = true;
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t from = 0, to = static_cast<uint32_t>(other.size() / 16);
            std::memcpy(&from, other.data() + 64 + i * 8, sizeof from);
            if (i < 3) std::memcpy(&to, other.data() + 64 + (i + 1) * 8, sizeof to);
            const uint32_t elements = i < 3 ? kTileElements : 40;
            good = unpack_tile(format_, {other.data() + from * 16, (to - from) * 16}, elements, &expected[i * tile]) &&
                   good;
        }
        program_->write(other, contents.size());
        program_->run(format_, 4, 4);
        EXPECT_EQ(program_->failed(), !good) << at;
        if (good) {
            EXPECT_TRUE(program_->read() == expected) << at;
        }
        refused += !good;
    }
    EXPECT_GT(refused, 40);
    EXPECT_LT(refused, 360);
}

INSTANTIATE_TEST_SUITE_P(Formats, Unpack, testing::ValuesIn(codec::test::kFormats),
                         [](const auto& format) { return std::string(program_for(format.param) + 10); });

}  // namespace
}  // namespace stagehand::test
