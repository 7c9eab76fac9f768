// Tiles in host memory: what the device packs, the host unpacks, and the other way round.
#include <cstring>

#include "../unit/codec/weights.h"
#include "core/device/tile_packing.h"
#include "instantiate.h"

namespace conformance {
namespace {

namespace codec = stagehand::codec;
namespace core = stagehand::core;
using codec::FloatFormat;
using codec::test::any_bits;
using codec::test::kFormats;
using codec::test::weights;

constexpr uint8_t kUntouched = 0xa5;
constexpr uint64_t kGuard = 256;  // bytes behind the elements and the tiles
// A part of a tile, a whole one, several, and more than the groups of threads of a launch.
constexpr uint64_t kCounts[] = {1, 7, 32, 33, 8191, 8192, 8193, 100'003, 300 * 8192 + 5};

class PackTilesTest : public Conformance {
protected:
    void SetUp() override {
        Conformance::SetUp();
        if (IsSkipped()) return;
        if (!backend().pack_tiles) {
            EXPECT_EQ(backend().unpack_tiles, nullptr);
            GTEST_SKIP() << "this backend packs nothing";
        }
        stream_ = new_stream();
        make(FloatFormat::bf16, 1);
        if (backend().pack_tiles(device(), stream_, &tiles_) == SH_ERROR_UNSUPPORTED)
            GTEST_SKIP() << "this backend wraps one that packs nothing";
        SH_OK_OR_END(backend().stream_synchronize(device(), stream_));
    }
    void TearDown() override {
        host_.reset();
        Conformance::TearDown();
    }
    void make(FloatFormat format, uint64_t elements) {
        contents_ = elements * codec::fields_of(format).bytes();
        bodies_ = codec::room_for_bodies(format, elements);
        headers_ = codec::room_for_headers(elements);
        memory_ = new_memory((contents_ + kGuard + 255) / 256 * 256);
        host_ = std::make_unique<PinnedBytes>(backend(), device(),
                                              std::vector<uint8_t>(bodies_ + kGuard + headers_ + kGuard, kUntouched));
        auto* const host = static_cast<uint8_t*>(host_->data());
        in_host_ = {format, elements, host, host + bodies_ + kGuard};
        tiles_ = core::tiles_at(memory_.address, in_host_);
    }
    void expect_guards() {
        const std::vector<uint8_t> untouched(kGuard, kUntouched);
        for (const uint8_t* const end : {in_host_.bodies + bodies_, in_host_.headers + headers_})
            EXPECT_EQ(std::vector<uint8_t>(end, end + kGuard), untouched);
    }
    void pack() {
        SH_OK_OR_END(backend().pack_tiles(device(), stream_, &tiles_));
        SH_OK_OR_END(backend().stream_synchronize(device(), stream_));
    }
    // The elements and the guard behind them.
    std::vector<uint8_t> unpacked() {
        EXPECT_GE(backend().fill(device(), stream_, memory_.address, kUntouched, contents_ + kGuard), 0);
        EXPECT_GE(backend().unpack_tiles(device(), stream_, &tiles_), 0) << backend().last_error();
        EXPECT_GE(backend().stream_synchronize(device(), stream_), 0) << backend().last_error();
        return read(memory_.address, contents_ + kGuard);
    }
    std::vector<uint8_t> guarded(std::vector<uint8_t> contents) {
        contents.resize(contents.size() + kGuard, kUntouched);
        return contents;
    }

    sh_stream stream_ = 0;
    uint64_t contents_ = 0, bodies_ = 0, headers_ = 0;
    Memory memory_;
    std::unique_ptr<PinnedBytes> host_;
    codec::TilesApart in_host_;
    sh_backend_tiles tiles_ = {};
};

TEST_P(PackTilesTest, the_host_unpacks_what_the_device_packs) {
    for (const FloatFormat format : kFormats)
        for (const uint64_t elements : kCounts)
            for (const bool random : {false, true}) {
                SCOPED_TRACE(std::to_string(tiles_.format) + ", " + std::to_string(elements));
                make(format, elements);
                const std::vector<uint8_t> contents =
                    random ? any_bits(format, elements, 1) : weights(format, elements, 1);
                write(memory_.address, contents);
                pack();
                std::vector<uint8_t> found(contents.size());
                uint64_t coded = 0, count = 0;
                codec::each_tile(in_host_, [&](const codec::TileApart& tile) {
                    const uint64_t body = codec::body_bytes(format, tile.header, tile.elements);
                    EXPECT_TRUE(codec::unpack_tile(format, tile.header, {tile.body, body}, tile.elements,
                                                   found.data() + tile.offset));
                    coded += !codec::is_raw_tile({tile.header, codec::kTileAlignment});
                    count++;
                });
                EXPECT_EQ(found, contents);
                EXPECT_TRUE(random || coded + 1 >= count) << coded << " of " << count;
                expect_guards();
                EXPECT_EQ(unpacked(), guarded(contents));
            }
}

TEST_P(PackTilesTest, the_device_unpacks_what_the_host_packs) {
    for (const FloatFormat format : kFormats)
        for (const uint64_t elements : kCounts) {
            make(format, elements);
            const std::vector<uint8_t> contents = weights(format, elements, 2);
            codec::pack_tiles(in_host_, contents.data());
            EXPECT_EQ(unpacked(), guarded(contents)) << tiles_.format << ", " << elements;
        }
}

TEST_P(PackTilesTest, nothing_beyond_the_elements_is_written_whatever_the_tiles_hold) {
    for (const FloatFormat format : kFormats) {
        make(format, 20'000);
        for (uint64_t seed = 0; seed < 20; seed++) {
            const std::vector<uint8_t> noise = any_bits(FloatFormat::f8_e4m3, bodies_ + headers_, seed);
            std::memcpy(in_host_.bodies, noise.data(), bodies_);
            std::memcpy(in_host_.headers, noise.data() + bodies_, headers_);
            if (seed % 2)  // a header that is nearly right
                codec::each_tile(in_host_, [&](const codec::TileApart& tile) {
                    std::memset(tile.header + 7, 0, 9);
                    tile.header[7] = 1;
                    tile.header[9] = static_cast<uint8_t>(seed);
                });
            const std::vector<uint8_t> found = unpacked();
            EXPECT_EQ(std::vector<uint8_t>(found.end() - kGuard, found.end()),
                      std::vector<uint8_t>(kGuard, kUntouched));
        }
    }
}

TEST_P(PackTilesTest, a_description_that_is_impossible_is_refused) {
    make(FloatFormat::bf16, 100);
    const sh_backend_tiles good = tiles_;
    const auto refuses = [&] {
        SH_EXPECT_FAILURE(backend().pack_tiles(device(), stream_, &tiles_));
        SH_EXPECT_FAILURE(backend().unpack_tiles(device(), stream_, &tiles_));
        tiles_ = good;
    };
    tiles_.format = 0;
    refuses();
    tiles_.format = 6;
    refuses();
    tiles_.elements = 0;
    refuses();
    tiles_.device += 8;
    refuses();
    for (void** const memory : {&tiles_.host, &tiles_.headers}) {
        *memory = static_cast<char*>(*memory) + 4;
        refuses();
        *memory = nullptr;
        refuses();
    }
}

SH_ON_EVERY_BACKEND(PackTilesTest);

}  // namespace
}  // namespace conformance
