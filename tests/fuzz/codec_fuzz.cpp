// Fuzzes the codec. The first byte of the input chooses what the rest is:
//   0: a frame, which gets the right checksums and is refused or unpacked;
//   1: a tile behind two bytes that say its format and its elements, which is refused or unpacked;
//   2: contents, which must come back;
//   3: a chunk behind three bytes that say its format and its elements, which is refused or unpacked.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "codec/checksum.h"
#include "codec/chunk.h"
#include "codec/frame.h"
#include "codec/tile.h"

namespace {

using namespace stagehand::codec;

constexpr std::uint64_t most_contents = std::uint64_t{4} << 20;

template <typename Number>
Number number_at(const std::vector<std::uint8_t>& bytes, std::size_t at) {
    Number number = 0;
    std::memcpy(&number, bytes.data() + at, sizeof number);
    return number;
}

// Chance finds no checksum, so what is behind one would never be reached.
void seal(std::vector<std::uint8_t>& frame) {
    constexpr std::size_t checksum_at = 32;
    constexpr std::size_t chunks_at = 28;
    if (frame.size() < kFrameHeaderBytes) {
        return;
    }
    const std::uint64_t chunks = number_at<std::uint32_t>(frame, chunks_at);
    const std::uint64_t end = (kFrameHeaderBytes + 8 * chunks + 15) / 16 * 16;
    if (end > frame.size()) {
        return;
    }
    for (std::uint64_t i = 0; i < chunks; ++i) {
        const std::size_t place = kFrameHeaderBytes + 8 * i;
        const std::uint64_t from = std::uint64_t{number_at<std::uint32_t>(frame, place)} * 16;
        const std::uint64_t to =
            i + 1 < chunks ? std::uint64_t{number_at<std::uint32_t>(frame, place + 8)} * 16 : frame.size();
        if (from <= to && to <= frame.size()) {
            const std::uint64_t sum = checksum(frame.data() + from, to - from);
            std::memcpy(frame.data() + place + 4, &sum, 4);
        }
    }
    std::memset(frame.data() + checksum_at, 0, 8);
    const std::uint64_t sum = checksum(frame.data(), end);
    std::memcpy(frame.data() + checksum_at, &sum, sizeof sum);
}

void open_frame(std::span<const std::uint8_t> given) {
    std::vector<std::uint8_t> input(given.begin(), given.end());
    seal(input);
    Frame frame;
    if (!Frame::open(input, &frame).ok() || frame.contents_bytes() > most_contents) {
        return;
    }
    std::vector<std::uint8_t> contents(frame.contents_bytes());
    (void)frame.unpack(0, contents.size(), contents.data()).ok();
    (void)frame.raw_tiles();
}

void open_tile(std::span<const std::uint8_t> input) {
    const auto format = input.size() < 3 ? std::nullopt : format_of(input[0]);
    if (!format) {
        return;
    }
    const std::uint32_t elements = input[1] + 1;
    std::vector<std::uint8_t> contents(std::size_t{elements} * fields_of(*format).bytes());
    (void)unpack_tile(*format, input.subspan(2), elements, contents.data());
}

void open_chunk(std::span<const std::uint8_t> input) {
    const auto format = input.size() < 3 ? std::nullopt : format_of(input[0]);
    if (!format) {
        return;
    }
    const std::uint32_t elements = input[1] * 256U + input[2] + 1;
    std::vector<std::uint8_t> contents(std::size_t{elements} * fields_of(*format).bytes());
    (void)unpack_chunk(*format, input.subspan(3), elements, contents.data());
}

void come_back(std::span<const std::uint8_t> input) {
    const auto format = input.empty() ? std::nullopt : format_of(input[0]);
    if (!format) {
        return;
    }
    const std::size_t element = fields_of(*format).bytes();
    const std::span<const std::uint8_t> contents = input.subspan(1, (input.size() - 1) / element * element);
    std::vector<std::uint8_t> bytes;
    Frame frame;
    std::vector<std::uint8_t> back(contents.size());
    if (!pack_frame(*format, contents.data(), contents.size(), 1, &bytes).ok() || !Frame::open(bytes, &frame).ok() ||
        !frame.unpack(0, back.size(), back.data()).ok() || !std::equal(back.begin(), back.end(), contents.begin())) {
        std::abort();
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) {
        return 0;
    }
    const std::span<const std::uint8_t> rest(data + 1, size - 1);
    switch (data[0] % 4) {
        case 0:
            open_frame(rest);
            break;
        case 1:
            open_tile(rest);
            break;
        case 3:
            open_chunk(rest);
            break;
        default:
            come_back(rest);
            break;
    }
    return 0;
}
