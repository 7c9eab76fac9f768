// The copies of packed ranges: every wanted byte is unpacked once, where it belongs, and no other byte is written.
#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "codec/frame_index.h"
#include "transfer/unpack/batches.h"

namespace stagehand::transfer {
namespace {

constexpr uint64_t kChunk = 2 * codec::kChunkElements;  // bytes of bf16
constexpr uint64_t kDevice = 1 << 20;                   // address of the segment's first byte

// The index of a frame whose chunks have different sizes. Nobody reads the chunks.
struct Tensor {
    explicit Tensor(uint64_t elements, uint64_t offset = 0) {
        constexpr codec::FloatFormat format = codec::FloatFormat::bf16;
        const uint64_t bytes = 2 * elements;
        uint64_t end = codec::frame_head_bytes(format, bytes);
        std::vector<codec::Place> places;
        for (uint64_t at = 0; at < elements; at += codec::kChunkElements) {
            places.push_back({static_cast<uint32_t>(end / codec::kTileAlignment), 0});
            const auto here = static_cast<uint32_t>(std::min<uint64_t>(elements - at, codec::kChunkElements));
            const uint64_t about = (here * 1399 / 1000 + places.size() % 7 * 64) / 64 * 64;
            end +=
                std::clamp(about, codec::smallest_chunk_bytes(format, here), codec::largest_chunk_bytes(format, here));
        }
        const std::vector<uint8_t> head = codec::frame_head(format, bytes, places, end);
        EXPECT_TRUE(codec::FrameIndex::open(head, end, &index).ok());
        segment.source.packed = &index;
        segment.source.packed_bytes = end;
        segment.source.packed_offset = offset;
        segment.bytes = segment.source.bytes = bytes - offset;
        segment.route = Route::packed;
    }
    PackedExtent extent(uint64_t begin, uint64_t end, uint32_t event = 0, uint64_t device = kDevice) const {
        return {&segment, begin, device + begin, end - begin, {event, 1}};
    }

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
        if (!batch.is_there) {
            EXPECT_LE(batch.bytes(), room);
        }
        for (uint64_t i = batch.chunk; i < batch.chunk + batch.chunks; i++) {
            const KeptChunks* const kept = tensor.segment.kept.get();
            const uint64_t address = kept ? kept->address_of(i) : 0;
            EXPECT_EQ(address, batch.kept_at ? batch.kept_at + (tensor.index.begin_of(i) - batch.begin()) : 0);
            EXPECT_EQ(batch.is_there, address && kept->is_there(i));
        }
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

TEST(KeptChunks, AreTheFirstOfEachPeriod) {
    const Tensor tensor(140 * codec::kChunkElements + 4321, 2 * 77);
    const ChunkRange range = chunks_from(tensor.segment.source, 3 * kChunk);
    EXPECT_EQ(range.begin, 3u);
    EXPECT_EQ(range.end, 141u);
    for (const uint32_t of_period : {1, 5, 100, 128}) {
        uint64_t end = kDevice * 4, bytes = 0;
        const KeptChunks kept(tensor.segment.source, range, of_period, &end);
        EXPECT_TRUE(kept.equals(range, of_period));
        EXPECT_FALSE(kept.equals(range, of_period + 1));
        for (uint64_t chunk = 0; chunk < 150; chunk++) {
            const bool stays = chunk >= 3 && chunk < 141 && (chunk - 3) % kKeptPeriod < of_period;
            ASSERT_EQ(kept.address_of(chunk), stays ? kDevice * 4 + bytes : 0);
            if (stays) bytes += tensor.index.begin_of(chunk + 1) - tensor.index.begin_of(chunk);
        }
        EXPECT_EQ(end, kDevice * 4 + bytes);
        std::vector<uint64_t> by_place(kKeptPeriod);
        add_by_place(tensor.segment.source, range, by_place.data());
        EXPECT_EQ(std::accumulate(by_place.begin(), by_place.begin() + of_period, uint64_t(0)), bytes);
    }
}

// Some chunks stay on the device, and some of those are there. Ranges that are divided cover the same bytes.
TEST(Batches, ChunksThatStay) {
    Tensor tensor(12 * codec::kChunkElements + 4321, 2 * 77);
    std::mt19937_64 random(4);
    for (const uint32_t of_period : {1, 5, 9, 12}) {
        uint64_t end = kDevice * 4;
        const ChunkRange range = chunks_from(tensor.segment.source, kChunk);
        tensor.segment.kept = std::make_shared<KeptChunks>(tensor.segment.source, range, of_period, &end);
        for (uint64_t chunk = range.begin; chunk < range.end; chunk++)
            if (tensor.segment.kept->address_of(chunk) && random() % 4) tensor.segment.kept->set_there(chunk);
        const uint64_t begin = 100, middle = 4 * kChunk + 999, last = 11 * kChunk;
        const std::vector<PackedExtent> extents = {tensor.extent(begin, middle), tensor.extent(middle, last)};
        expect_once(tensor, extents, 3 * kChunk);
        std::vector<PackedExtent> there, missing;
        for (const PackedExtent& extent : extents) divide(extent, &there, &missing);
        EXPECT_FALSE(of_period > 5 && there.empty());
        Batches batches;
        for (const auto* part : {&there, &missing}) {
            cut_batches(*part, 3 * kChunk, &batches);
            for (const Batch& batch : batches.list) EXPECT_EQ(batch.is_there, part == &there);
            if (!part->empty()) expect_once(tensor, *part, 3 * kChunk);
        }
        there.insert(there.end(), missing.begin(), missing.end());
        std::ranges::sort(there, {}, &PackedExtent::inside);
        uint64_t at = begin;
        for (const PackedExtent& extent : there) {
            EXPECT_EQ(extent.inside, at);
            EXPECT_EQ(extent.device, kDevice + at);
            at += extent.bytes;
        }
        EXPECT_EQ(at, last);
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
