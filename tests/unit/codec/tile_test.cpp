#include "codec/tile.h"

#include <gtest/gtest.h>

#include <string>

#include "weights.h"

namespace stagehand::codec::test {
namespace {

std::vector<uint8_t> tile_of(FloatFormat format, const std::vector<uint8_t>& contents) {
    const auto elements = static_cast<uint32_t>(contents.size() / fields_of(format).bytes());
    std::vector<uint8_t> tile(largest_tile_bytes(format, elements));
    tile.resize(pack_tile(format, contents.data(), elements, tile.data()));
    return tile;
}

std::vector<uint8_t> contents_of(FloatFormat format, const std::vector<uint8_t>& tile, size_t bytes) {
    std::vector<uint8_t> contents(bytes, 0xa5);
    const auto elements = static_cast<uint32_t>(bytes / fields_of(format).bytes());
    EXPECT_TRUE(unpack_tile(format, tile, elements, contents.data()));
    return contents;
}

class Formats : public testing::TestWithParam<FloatFormat> {
protected:
    const FloatFormat format_ = GetParam();
    const uint32_t element_ = fields_of(format_).bytes();
};

TEST_P(Formats, WeightsComeBackBitByBitAndAreSmaller) {
    // The codes, the rest, and 2 % of escapes, which are less than a twentieth of an element each.
    const double coded = (3.0 + fields_of(format_).rest_bits()) / (8.0 * element_);
    for (const uint32_t seed : {1, 2, 3}) {
        const std::vector<uint8_t> contents = weights(format_, kTileElements, seed);
        const std::vector<uint8_t> tile = tile_of(format_, contents);
        EXPECT_FALSE(is_raw_tile(tile));
        EXPECT_EQ(tile.size() % kTileAlignment, 0u);
        EXPECT_LT(static_cast<double>(tile.size()), (coded + 0.03) * static_cast<double>(contents.size()));
        EXPECT_EQ(contents_of(format_, tile, contents.size()), contents);
    }
}

TEST_P(Formats, AnyBitsComeBackAndTakeNoMoreThanAHeader) {
    const std::vector<uint8_t> contents = any_bits(format_, kTileElements, 4);
    const std::vector<uint8_t> tile = tile_of(format_, contents);
    EXPECT_LE(tile.size(), contents.size() + 16);
    EXPECT_EQ(contents_of(format_, tile, contents.size()), contents);
}

TEST_P(Formats, EveryNumberOfElements) {
    for (uint32_t elements = 1; elements <= 200; elements++) {
        const std::vector<uint8_t> contents = weights(format_, elements, elements);
        EXPECT_EQ(contents_of(format_, tile_of(format_, contents), contents.size()), contents) << elements;
    }
    for (const uint32_t elements : {kTileElements - 1, kTileElements - 31, kTileElements - 32}) {
        const std::vector<uint8_t> contents = weights(format_, elements, elements);
        EXPECT_EQ(contents_of(format_, tile_of(format_, contents), contents.size()), contents) << elements;
    }
}

TEST_P(Formats, EveryElementThatThereIs) {
    const uint32_t bits = std::min<uint32_t>(8 * element_, 16);
    std::vector<uint8_t> all;
    for (uint32_t value = 0; value < uint32_t(1) << bits; value++)
        append(&all, value << (8 * element_ - bits), element_);
    for (size_t at = 0; at < all.size(); at += uint64_t(kTileElements) * element_) {
        const size_t end = std::min(all.size(), at + uint64_t(kTileElements) * element_);
        const std::vector<uint8_t> contents(all.begin() + static_cast<long>(at), all.begin() + static_cast<long>(end));
        EXPECT_EQ(contents_of(format_, tile_of(format_, contents), contents.size()), contents);
    }
}

TEST_P(Formats, ATileOfAnotherSizeIsRefused) {
    const std::vector<uint8_t> contents = weights(format_, 100, 5);
    std::vector<uint8_t> tile = tile_of(format_, contents);
    std::vector<uint8_t> to(contents.size() * 2);
    EXPECT_FALSE(unpack_tile(format_, tile, 200, to.data()));
    for (size_t bytes = 0; bytes < tile.size(); bytes++)
        EXPECT_FALSE(unpack_tile(format_, {tile.data(), bytes}, 100, to.data())) << bytes;
    tile.resize(tile.size() + 16);
    EXPECT_FALSE(unpack_tile(format_, tile, 100, to.data()));
}

// The sanitizers see that nothing is read or written elsewhere.
TEST_P(Formats, WrongBitsAreRefusedOrDecoded) {
    const std::vector<uint8_t> contents = weights(format_, 70, 6, 30);
    const std::vector<uint8_t> tile = tile_of(format_, contents);
    std::vector<uint8_t> to(contents.size());
    int refused = 0;
    for (size_t bit = 0; bit < 8 * tile.size(); bit++) {
        std::vector<uint8_t> other = tile;
        other[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
        refused += !unpack_tile(format_, other, 70, to.data());
    }
    EXPECT_GE(refused, 8 + 32);  // the kind, and the four bytes behind it that are zero
}

INSTANTIATE_TEST_SUITE_P(Tile, Formats, testing::ValuesIn(kFormats),
                         [](const auto& format) { return "format" + std::to_string(static_cast<int>(format.param)); });

TEST(Tile, EscapesMustBeAsManyAsTheHeaderSays) {
    std::vector<uint8_t> contents;
    for (uint32_t i = 0; i < 320; i++) append(&contents, (i < 10 ? 200u + i : 100 + i % 7) << 7, 2);
    std::vector<uint8_t> tile = tile_of(FloatFormat::bf16, contents);
    ASSERT_EQ(tile[8], 10);
    std::vector<uint8_t> to(contents.size());
    for (const uint8_t other : {9, 11}) {  // of the same size
        tile[8] = other;
        EXPECT_FALSE(unpack_tile(FloatFormat::bf16, tile, 320, to.data())) << int(other);
    }
}

}  // namespace
}  // namespace stagehand::codec::test
