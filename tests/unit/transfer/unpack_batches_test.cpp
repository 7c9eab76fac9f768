// The copies of packed ranges: every wanted byte is unpacked once, where it belongs, and no other byte is written.
#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "../codec/weights.h"
#include "codec/frame.h"
#include "codec/frame_index.h"
#include "transfer/unpack/batches.h"

namespace stagehand::transfer {
namespace {

constexpr uint64_t kChunk = 2 * codec::kChunkElements;  // bytes of bf16
constexpr uint64_t kDevice = 1 << 20;                   // address of the segment's first byte

struct Tensor {
    explicit Tensor(uint64_t elements, uint64_t offset = 0) {
        const std::vector<uint8_t> contents = codec::test::weights(codec::FloatFormat::bf16, elements, 1);
        EXPECT_TRUE(codec::pack_frame(codec::FloatFormat::bf16, contents.data(), contents.size(), 1, &frame).ok());
        EXPECT_TRUE(codec::FrameIndex::open(
                        std::span(frame).first(codec::frame_head_bytes(codec::FloatFormat::bf16, contents.size())),
                        frame.size(), &index)
                        .ok());
        segment.source.packed = &index;
        segment.source.packed_bytes = frame.size();
        segment.source.packed_offset = offset;
        segment.bytes = segment.source.bytes = contents.size() - offset;
        segment.route = Route::packed;
    }
    PackedExtent extent(uint64_t begin, uint64_t end, uint32_t event = 0, uint64_t device = kDevice) const {
        return {&segment, begin, device + begin, end - begin, {event, 1}};
    }

    std::vector<uint8_t> frame;
    codec::FrameIndex index;
    Segment segment;
};

// Carries the batches out on marks instead of bytes. mark[i] tells how often byte i of the segment was written.
std::vector<int> written(const Tensor& tensor, const std::vector<PackedExtent>& extents, uint64_t room,
                         const Batches& batches, uint64_t device = kDevice) {
    std::vector<int> marks(tensor.segment.bytes);
    uint32_t turn = 0;
    for (const Batch& batch : batches.list) {
        EXPECT_GE(batch.turn, turn);
        turn = batch.turn;
        EXPECT_LE(tensor.index.begin_of(batch.chunk + batch.chunks) - tensor.index.begin_of(batch.chunk), room);
        uint64_t chunk = batch.chunk;
        for (uint32_t i = 0; i < batch.unpackings; i++) {
            const Unpacking& part = batches.unpackings[batch.first_unpacking + i];
            EXPECT_EQ(part.chunk, chunk);
            chunk += part.chunks;
            const uint64_t begin = part.chunk * kChunk + part.skip - tensor.segment.source.packed_offset;
            EXPECT_EQ(part.device, device + begin);
            if (!part.through_scratch) {
                EXPECT_EQ(part.skip, 0u);
                EXPECT_EQ(part.device % 16, 0u);
            }
            // Whoever is written must have been waited for: each byte lies in one of the batch's extents.
            for (uint64_t at = begin; at < begin + part.bytes; at++) {
                marks[at]++;
                const auto has = [&](uint32_t k) {
                    const PackedExtent& extent = extents[batches.by_place[batch.first_extent + k]];
                    return extent.inside <= at && at < extent.inside + extent.bytes;
                };
                bool waited = false;
                for (uint32_t k = 0; k < batch.extents && !waited; k++) waited = has(k);
                if (!waited) return ADD_FAILURE() << "byte " << at << " is written too early", marks;
            }
        }
        EXPECT_EQ(chunk, batch.chunk + batch.chunks);
    }
    return marks;
}

void expect_once(const Tensor& tensor, const std::vector<PackedExtent>& extents, uint64_t room,
                 uint64_t device = kDevice) {
    Batches batches;
    cut_batches(extents, room, &batches);
    std::vector<int> wanted(tensor.segment.bytes);
    for (const PackedExtent& extent : extents)
        for (uint64_t at = extent.inside; at < extent.inside + extent.bytes; at++) wanted[at] = 1;
    EXPECT_TRUE(written(tensor, extents, room, batches, device) == wanted);
}

TEST(Batches, WholeTensorsNeedNoScratch) {
    const Tensor tensor(5 * codec::kChunkElements + 100);
    Batches batches;
    const std::vector<PackedExtent> extents = {tensor.extent(0, tensor.segment.bytes)};
    cut_batches(extents, kChunk, &batches);
    EXPECT_EQ(batches.list.size(), 5u);  // the last chunk is small
    EXPECT_TRUE(std::ranges::none_of(batches.unpackings, &Unpacking::through_scratch));
    expect_once(tensor, extents, kChunk);
    cut_batches(extents, 16 * kChunk, &batches);
    EXPECT_EQ(batches.list.size(), 1u);
    EXPECT_EQ(batches.unpackings.size(), 1u);
}

// An extent that is free early is brought before its neighbour, and the chunk between both comes once, with the later.
TEST(Batches, ChunksBetweenExtentsComeOnce) {
    const Tensor tensor(6 * codec::kChunkElements);
    const uint64_t border = 3 * kChunk + 1000;
    const std::vector<PackedExtent> extents = {tensor.extent(border, 6 * kChunk, 0), tensor.extent(0, border, 1)};
    Batches batches;
    cut_batches(extents, 16 * kChunk, &batches);
    ASSERT_EQ(batches.list.size(), 2u);
    EXPECT_EQ(batches.list[0].chunk, 4u);
    EXPECT_EQ(batches.list[1].chunk, 0u);
    EXPECT_EQ(batches.list[1].chunks, 4u);
    EXPECT_EQ(batches.list[1].extents, 2u);
    EXPECT_TRUE(std::ranges::none_of(batches.unpackings, &Unpacking::through_scratch));
    expect_once(tensor, extents, 16 * kChunk);
}

TEST(Batches, PlacesThatAreNoMultipleOf16GoThroughScratch) {
    const Tensor tensor(2 * codec::kChunkElements, 6);
    const std::vector<PackedExtent> extents = {tensor.extent(0, tensor.segment.bytes, 0, kDevice + 2)};
    Batches batches;
    cut_batches(extents, 4 * kChunk, &batches);
    EXPECT_TRUE(std::ranges::all_of(batches.unpackings, &Unpacking::through_scratch));
    expect_once(tensor, extents, 4 * kChunk, kDevice + 2);
}

TEST(Batches, RandomExtents) {
    const Tensor tensor(7 * codec::kChunkElements + 4321, 2 * 77);
    std::mt19937_64 random(3);
    for (int round = 0; round < 12; round++) {
        std::vector<uint64_t> cuts = {0, tensor.segment.bytes};
        for (int i = 0; i < 9; i++) cuts.push_back(random() % tensor.segment.bytes);
        std::ranges::sort(cuts);
        std::vector<PackedExtent> extents;
        for (size_t i = 0; i + 1 < cuts.size(); i++)
            if (cuts[i] < cuts[i + 1] && random() % 4) extents.push_back(tensor.extent(cuts[i], cuts[i + 1]));
        std::ranges::shuffle(extents, random);
        if (!extents.empty()) expect_once(tensor, extents, (1 + random() % 4) * kChunk);
    }
}

TEST(Batches, ThePackedPartIsThatOfTheChunks) {
    const Tensor whole(4 * codec::kChunkElements);
    EXPECT_NEAR(packed_part(whole.segment.source), 0.70, 0.01);
    Tensor half(4 * codec::kChunkElements);
    half.segment.source.packed_offset = kChunk / 2;
    half.segment.source.bytes = kChunk;  // lies in two chunks
    EXPECT_NEAR(packed_part(half.segment.source), 1.40, 0.02);
}

}  // namespace
}  // namespace stagehand::transfer
