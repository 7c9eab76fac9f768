// Unpacking: what the host unpacks comes out of the device too, and what the host refuses is noticed.
#include <cstring>
#include <random>

#include "../unit/codec/weights.h"
#include "codec/frame.h"
#include "instantiate.h"

namespace conformance {
namespace {

namespace codec = stagehand::codec;
using codec::FloatFormat;
using codec::test::any_bits;
using codec::test::kFormats;
using codec::test::weights;

constexpr uint8_t kUntouched = 0xa5;
constexpr uint64_t kGuard = 256;  // bytes behind the elements

// Chunks that follow each other, as a load brings them.
struct Chunks {
    FloatFormat format = FloatFormat::bf16;
    uint64_t elements = 0;
    std::vector<uint8_t> bytes;
    std::vector<uint32_t> places;

    uint64_t contents_bytes() const { return elements * codec::fields_of(format).bytes(); }
    uint32_t elements_of(size_t chunk) const {
        return static_cast<uint32_t>(
            std::min<uint64_t>(elements - chunk * codec::kChunkElements, codec::kChunkElements));
    }
};

Chunks chunks_of(FloatFormat format, const std::vector<uint8_t>& contents) {
    std::vector<uint8_t> packed;
    codec::Frame frame;
    EXPECT_TRUE(codec::pack_frame(format, contents.data(), contents.size(), 1, &packed).ok());
    EXPECT_TRUE(codec::Frame::open(packed, &frame).ok());
    Chunks chunks = {format, contents.size() / codec::fields_of(format).bytes(), {}, {0}};
    for (uint32_t i = 0; i < frame.chunks(); i++) {
        const auto chunk = frame.chunk(i);
        chunks.bytes.insert(chunks.bytes.end(), chunk.begin(), chunk.end());
        chunks.places.push_back(static_cast<uint32_t>(chunks.bytes.size() / 16));
    }
    return chunks;
}

class UnpackTest : public Conformance {
protected:
    void SetUp() override {
        Conformance::SetUp();
        if (!IsSkipped() && !backend().unpack) GTEST_SKIP() << "this backend unpacks nothing";
    }
    sh_backend_packed description(const Chunks& chunks) const {
        sh_backend_packed packed = {};
        packed.struct_size = sizeof packed;
        packed.format = static_cast<uint32_t>(chunks.format);
        packed.from = from_;
        packed.to = to_;
        packed.failed = failed_;
        packed.elements = chunks.elements;
        packed.chunks = static_cast<uint32_t>(chunks.places.size() - 1);
        std::copy(chunks.places.begin(), chunks.places.end(), packed.places);
        return packed;
    }
    // Memory for the chunks, the elements and the word that tells of a failure.
    void take_memory(const Chunks& chunks) {
        if (!memory_.bytes || memory_.bytes < needed(chunks)) memory_ = new_memory(needed(chunks));
        from_ = memory_.address;
        to_ = from_ + (chunks.bytes.size() + kGuard) / 256 * 256;
        failed_ = to_ + (chunks.contents_bytes() + 2 * kGuard) / 256 * 256;
    }
    // Returns the elements and the guard behind them.
    std::vector<uint8_t> unpacked(const Chunks& chunks, bool* failed) {
        take_memory(chunks);
        if (!stream_) stream_ = new_stream();
        const uint64_t bytes = chunks.contents_bytes() + kGuard;
        write(from_, chunks.bytes);
        EXPECT_GE(backend().fill(device(), stream_, to_, kUntouched, bytes), 0);
        EXPECT_GE(backend().fill(device(), stream_, failed_, 0, 4), 0);
        sh_backend_packed packed = description(chunks);
        EXPECT_GE(backend().unpack(device(), stream_, &packed), 0) << backend().last_error();
        packed = {};  // the call has read it
        EXPECT_GE(backend().stream_synchronize(device(), stream_), 0);
        *failed = read(failed_, 4) != std::vector<uint8_t>(4);
        return read(to_, bytes);
    }
    void expect_back(FloatFormat format, std::vector<uint8_t> contents) {
        bool failed = false;
        const std::vector<uint8_t> found = unpacked(chunks_of(format, contents), &failed);
        if (!has_contents()) return;
        EXPECT_FALSE(failed);
        contents.resize(contents.size() + kGuard, kUntouched);
        EXPECT_TRUE(found == contents) << "format " << static_cast<int>(format) << ", bytes " << contents.size();
    }

    Memory memory_ = {};
    uint64_t from_ = 0, to_ = 0, failed_ = 0;
    sh_stream stream_ = 0;

private:
    static uint64_t needed(const Chunks& chunks) { return chunks.bytes.size() + chunks.contents_bytes() + 8 * kGuard; }
};

TEST_P(UnpackTest, ContentsOfAnySizeComeBack) {
    for (const FloatFormat format : kFormats) {
        for (uint64_t elements = 1; elements <= 70; elements++)
            expect_back(format, weights(format, elements, static_cast<uint32_t>(elements)));
        for (const uint64_t elements : {8191, 8192, 8193, 3 * 8192 + 77, 262'144, 262'145, 3 * 262'144 + 5})
            expect_back(format, weights(format, elements, static_cast<uint32_t>(elements)));
    }
}

TEST_P(UnpackTest, TheMostChunksComeBack) {
    const std::vector<uint8_t> part = weights(FloatFormat::f8_e5m2, SH_BACKEND_CHUNK_ELEMENTS, 3);
    std::vector<uint8_t> contents;
    for (uint32_t i = 0; i < SH_BACKEND_UNPACK_CHUNKS; i++) contents.insert(contents.end(), part.begin(), part.end());
    contents.front() ^= 1;
    contents.back() ^= 1;
    expect_back(FloatFormat::f8_e5m2, contents);
}

TEST_P(UnpackTest, AnyBitsComeBack) {
    for (const FloatFormat format : kFormats) {
        expect_back(format, any_bits(format, 5 * 8192 + 3, 2));
        // Packed and raw tiles in turn, NaNs and denormals among them.
        std::vector<uint8_t> contents;
        for (uint32_t tile = 0; tile < 40; tile++) {
            const auto part =
                tile % 2 ? any_bits(format, 8192, tile) : weights(format, 8192, tile, tile % 3 ? 0.02f : 1e-38f);
            contents.insert(contents.end(), part.begin(), part.end());
        }
        expect_back(format, contents);
    }
}

// What the host refuses is refused, and what the host takes has the same contents.
TEST_P(UnpackTest, TakesAndRefusesWhatTheHostDoes) {
    if (!has_contents()) GTEST_SKIP() << "this device has no contents";
    for (const FloatFormat format : kFormats) {
        std::mt19937 random(3);
        const std::vector<uint8_t> contents = weights(format, 262'144 + 8192 + 40, 4, 3);
        const Chunks chunks = chunks_of(format, contents);
        ASSERT_EQ(chunks.places.size(), 3u);
        int refused = 0;
        for (int round = 0; round < 120; round++) {
            Chunks other = chunks;
            // A bit of the sizes, of a tile's header, or anywhere.
            const uint64_t second = uint64_t(chunks.places[1]) * 16;
            const uint64_t at = round % 3 == 0   ? second + random() % codec::kChunkHeaderBytes
                                : round % 3 == 1 ? second + codec::kChunkHeaderBytes + random() % 16
                                                 : random() % other.bytes.size();
            other.bytes[at] ^= static_cast<uint8_t>(1 << random() % 8);
            std::vector<uint8_t> expected(contents.size() + kGuard, kUntouched);
            bool good = true, failed = false;
            for (size_t i = 0; i < 2; i++) {
                const auto* const begin = other.bytes.data();
                good = codec::unpack_chunk(
                           format, {begin + uint64_t(other.places[i]) * 16, begin + uint64_t(other.places[i + 1]) * 16},
                           other.elements_of(i),
                           expected.data() + i * codec::kChunkElements * codec::fields_of(format).bytes()) &&
                       good;
            }
            const std::vector<uint8_t> found = unpacked(other, &failed);
            EXPECT_EQ(failed, !good) << at;
            EXPECT_TRUE(!good || found == expected) << at;
            refused += !good;
            EXPECT_TRUE(
                std::all_of(found.end() - kGuard, found.end(), [](uint8_t byte) { return byte == kUntouched; }));
        }
        EXPECT_GT(refused, 30);
        EXPECT_LT(refused, 110);
    }
}

TEST_P(UnpackTest, RunsInTheOrderOfItsStream) {
    const std::vector<uint8_t> first = weights(FloatFormat::bf16, 300'000, 1),
                               second = weights(FloatFormat::bf16, 300'000, 2);
    Chunks one = chunks_of(FloatFormat::bf16, first), two = chunks_of(FloatFormat::bf16, second);
    one.bytes.resize(std::max(one.bytes.size(), two.bytes.size()));
    take_memory(one);
    const Memory seen = new_memory(2 * first.size());
    stream_ = new_stream();
    for (const Chunks* chunks : {&one, &two}) {
        const sh_backend_packed packed = description(*chunks);
        SH_OK_OR_END(backend().copy_to_device(device(), stream_, from_, chunks->bytes.data(), chunks->bytes.size()));
        SH_OK_OR_END(backend().unpack(device(), stream_, &packed));
        SH_OK_OR_END(backend().copy_on_device(device(), stream_, seen.address + (chunks == &two) * first.size(), to_,
                                              first.size()));
    }
    SH_OK_OR_END(backend().stream_synchronize(device(), stream_));
    expect_contents(seen.address, first);
    expect_contents(seen.address + first.size(), second);
}

TEST_P(UnpackTest, WrongDescriptionsAreRefused) {
    const Chunks chunks = chunks_of(FloatFormat::bf16, weights(FloatFormat::bf16, 300'000, 1));
    take_memory(chunks);
    stream_ = new_stream();
    const auto refused = [&](auto&& change) {
        sh_backend_packed packed = description(chunks);
        change(packed);
        SH_EXPECT_FAILURE(backend().unpack(device(), stream_, &packed));
    };
    refused([](sh_backend_packed& packed) { packed.format = 0; });
    refused([](sh_backend_packed& packed) { packed.format = 6; });
    refused([](sh_backend_packed& packed) { packed.chunks = 0; });
    refused([](sh_backend_packed& packed) { packed.chunks = SH_BACKEND_UNPACK_CHUNKS + 1; });
    refused([](sh_backend_packed& packed) { packed.chunks = 1; });
    refused([](sh_backend_packed& packed) { packed.elements = 0; });
    refused([](sh_backend_packed& packed) { packed.elements += SH_BACKEND_CHUNK_ELEMENTS; });
    refused([](sh_backend_packed& packed) { packed.from += 8; });
    refused([](sh_backend_packed& packed) { packed.to += 8; });
    refused([](sh_backend_packed& packed) { packed.failed += 2; });
    refused([](sh_backend_packed& packed) { packed.places[1] = packed.places[0]; });
    refused([](sh_backend_packed& packed) { packed.places[2] = packed.places[1] - 1; });
    if (!quirks().checks_handles) return;
    refused([](sh_backend_packed& packed) { packed.to = 256; });
    refused([](sh_backend_packed& packed) { packed.failed = 256; });
}

SH_ON_EVERY_BACKEND(UnpackTest);

}  // namespace
}  // namespace conformance
