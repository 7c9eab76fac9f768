#include "codec/frame.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "codec/checksum.h"
#include "codec/chunk.h"
#include "codec/tile.h"
#include "weights.h"

namespace stagehand::codec::test {
namespace {

std::vector<uint8_t> frame_of(FloatFormat format, const std::vector<uint8_t>& contents, uint32_t threads = 1) {
    std::vector<uint8_t> frame;
    const Status status = pack_frame(format, contents.data(), contents.size(), threads, &frame);
    EXPECT_TRUE(status.ok()) << status.text();
    return frame;
}

// Empty if the frame is refused.
std::vector<uint8_t> contents_of_frame(const std::vector<uint8_t>& bytes) {
    Frame frame;
    if (!Frame::open(bytes, &frame).ok()) return {};
    std::vector<uint8_t> contents(frame.contents_bytes());
    if (!frame.unpack(0, contents.size(), contents.data()).ok()) return {};
    return contents;
}

std::string why_refused(const std::vector<uint8_t>& bytes) {
    Frame frame;
    const Status status = Frame::open(bytes, &frame);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.code(), SH_ERROR_INVALID_ARGUMENT);
    return status.text();
}

// Writes the checksum of the header anew, as somebody would who wants to deceive.
void seal(std::vector<uint8_t>* frame, uint64_t index_end) {
    std::memset(frame->data() + 32, 0, 8);
    const uint64_t sum = checksum(frame->data(), index_end);
    std::memcpy(frame->data() + 32, &sum, sizeof sum);
}

TEST(Frame, ContentsOfAnySizeComeBack) {
    for (const FloatFormat format : kFormats) {
        for (const uint64_t elements : {0, 1, 31, 8191, 8192, 8193, 3 * 8192 + 77, 32 * 8192, 200 * 8192 + 1}) {
            const std::vector<uint8_t> contents = weights(format, elements, static_cast<uint32_t>(elements));
            const std::vector<uint8_t> frame = frame_of(format, contents);
            Frame opened;
            ASSERT_TRUE(Frame::open(frame, &opened).ok());
            EXPECT_EQ(opened.format(), format);
            EXPECT_EQ(opened.contents_bytes(), contents.size());
            EXPECT_EQ(opened.tiles(), (elements + 8191) / 8192);
            EXPECT_EQ(opened.chunks(), (elements + 262'143) / 262'144);
            EXPECT_EQ(contents_of_frame(frame), contents) << elements;
        }
    }
}

TEST(Frame, WhatDoesNotPayStaysAsItIs) {
    std::vector<uint8_t> contents = weights(FloatFormat::bf16, 2 * 8192, 1);
    const std::vector<uint8_t> other = any_bits(FloatFormat::bf16, 8192, 2);
    contents.insert(contents.end(), other.begin(), other.end());
    const std::vector<uint8_t> frame = frame_of(FloatFormat::bf16, contents);
    Frame opened;
    ASSERT_TRUE(Frame::open(frame, &opened).ok());
    EXPECT_EQ(opened.raw_tiles(), 1u);
    EXPECT_EQ(contents_of_frame(frame), contents);
}

TEST(Frame, RangesComeBack) {
    const std::vector<uint8_t> contents = weights(FloatFormat::f32, 68 * 8192 + 100, 3);
    const std::vector<uint8_t> frame = frame_of(FloatFormat::f32, contents);
    Frame opened;
    ASSERT_TRUE(Frame::open(frame, &opened).ok());
    const uint64_t tile = 4 * 8192, all = contents.size();
    for (const auto& [offset, bytes] : std::vector<std::pair<uint64_t, uint64_t>>{{0, 0},
                                                                                  {0, 1},
                                                                                  {all - 1, 1},
                                                                                  {all, 0},
                                                                                  {tile - 3, 7},
                                                                                  {5, 2 * tile},
                                                                                  {tile, 2 * tile},
                                                                                  {31 * tile + 5, 40 * tile / 10},
                                                                                  {32 * tile, 32 * tile},
                                                                                  {64 * tile, 3 * tile + 1},
                                                                                  {tile, all - tile}}) {
        std::vector<uint8_t> range(bytes + 1, 0x5a);
        ASSERT_TRUE(opened.unpack(offset, bytes, range.data()).ok());
        EXPECT_EQ(std::memcmp(range.data(), contents.data() + offset, bytes), 0) << offset << ' ' << bytes;
        EXPECT_EQ(range[bytes], 0x5a);
    }
    uint8_t byte = 0;
    EXPECT_EQ(opened.unpack(all, 1, &byte).code(), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(opened.unpack(all + 1, 0, &byte).code(), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(opened.unpack(1, UINT64_MAX, &byte).code(), SH_ERROR_INVALID_ARGUMENT);
}

TEST(Frame, EveryFlippedBitIsNoticed) {
    for (const FloatFormat format : {FloatFormat::bf16, FloatFormat::f8_e4m3}) {
        const std::vector<uint8_t> frame = frame_of(format, weights(format, 500, 4));
        for (size_t bit = 0; bit < 8 * frame.size(); bit++) {
            std::vector<uint8_t> other = frame;
            other[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
            EXPECT_TRUE(contents_of_frame(other).empty()) << bit;
        }
    }
}

TEST(Frame, EveryShorterOneIsRefused) {
    std::vector<uint8_t> frame = frame_of(FloatFormat::bf16, weights(FloatFormat::bf16, 500, 5));
    for (size_t bytes = 0; bytes < frame.size(); bytes++)
        why_refused({frame.begin(), frame.begin() + static_cast<long>(bytes)});
    frame.push_back(0);
    EXPECT_NE(why_refused(frame).find("bytes instead of"), std::string::npos);
}

TEST(Frame, TheReasonIsTold) {
    const std::vector<uint8_t> frame = frame_of(FloatFormat::bf16, weights(FloatFormat::bf16, 33 * 8192, 6));
    const auto with = [&](size_t at, uint8_t value) {
        std::vector<uint8_t> other = frame;
        other[at] = value;
        seal(&other, 64 + 16);
        return other;
    };
    EXPECT_EQ(why_refused(with(0, 'X')), "not a packed tensor: it does not begin with \"SHPK\"");
    EXPECT_EQ(why_refused(with(4, 9)), "not a packed tensor: version 9 is unknown");
    EXPECT_EQ(why_refused(with(6, 77)), "not a packed tensor: format 77 is unknown");
    EXPECT_EQ(why_refused(with(11, 9)), "not a packed tensor: its sizes contradict each other");
    EXPECT_EQ(why_refused(with(24, 1)), "not a packed tensor: its sizes contradict each other");
    EXPECT_EQ(why_refused(with(28, 3)), "not a packed tensor: its sizes contradict each other");
    EXPECT_EQ(why_refused(with(64, 1)), "not a packed tensor: its chunks do not follow each other");
    EXPECT_EQ(why_refused(with(72, 255)), "not a packed tensor: chunk 1 has a size that no chunk has");
    EXPECT_EQ(why_refused(with(75, 200)), "not a packed tensor: chunk 0 has a size that no chunk has");
}

// A small frame whose contents would be large.
TEST(Frame, ChunksThatAreTooSmallAreRefused) {
    constexpr uint32_t kChunks = 10;
    std::vector<uint8_t> frame =
        frame_of(FloatFormat::f32, weights(FloatFormat::f32, uint64_t(kChunks) * kChunkElements, 8));
    const uint64_t begin = (64 + 8 * kChunks + 15) / 16 * 16,
                   least = smallest_chunk_bytes(FloatFormat::f32, kChunkElements);
    for (uint32_t i = 0; i < kChunks; i++) {
        const auto place = static_cast<uint32_t>((begin + i * (least - 16)) / 16);
        std::memcpy(frame.data() + 64 + 8 * i, &place, sizeof place);
    }
    frame.resize(begin + kChunks * (least - 16));
    const uint64_t bytes = frame.size();
    std::memcpy(frame.data() + 16, &bytes, sizeof bytes);
    seal(&frame, begin);
    EXPECT_EQ(why_refused(frame), "not a packed tensor: chunk 0 has a size that no chunk has");
}

TEST(Frame, AChunkThatContradictsItselfIsRefusedWithARightChecksumToo) {
    const std::vector<uint8_t> frame = frame_of(FloatFormat::bf16, weights(FloatFormat::bf16, 100, 7));
    constexpr size_t kBegin = 80;
    const auto refused_with = [&](size_t at, uint8_t value) {
        std::vector<uint8_t> other = frame;
        other[at] = value;
        const uint64_t sum = checksum(other.data() + kBegin, other.size() - kBegin);
        std::memcpy(other.data() + 64 + 4, &sum, 4);
        seal(&other, kBegin);
        Frame opened;
        ASSERT_TRUE(Frame::open(other, &opened).ok());
        std::vector<uint8_t> to(200);
        EXPECT_STREQ(opened.unpack(0, 200, to.data()).text(), "not a packed tensor: chunk 0 contradicts itself");
    };
    refused_with(kBegin, static_cast<uint8_t>(frame[kBegin] + 1));  // the size of a tile
    refused_with(kBegin + 2, 1);                                    // the size of a tile that is not there
    refused_with(kBegin + kChunkHeaderBytes + 12, 1);               // a zero of the tile's header
}

std::vector<uint8_t> committed(const std::string& name) {
    std::ifstream file(std::string(STAGEHAND_TEST_DATA) + "/packed/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// Files that exist already can be read, and are still written like that.
TEST(Frame, IsThatOfFilesThatExist) {
    const std::vector<uint8_t> contents = committed("weights.bf16"), frame = committed("weights.packed");
    ASSERT_EQ(contents.size(), 18'000u);
    EXPECT_EQ(contents_of_frame(frame), contents);
    EXPECT_EQ(frame_of(FloatFormat::bf16, contents), frame);
}

TEST(Frame, WhatCannotBePacked) {
    std::vector<uint8_t> frame;
    const uint8_t three[3] = {};
    EXPECT_EQ(pack_frame(FloatFormat::bf16, three, 3, 1, &frame).code(), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(pack_frame(FloatFormat::bf16, three, uint64_t(1) << 35, 1, &frame).code(), SH_ERROR_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace stagehand::codec::test
