#include "codec/packer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <new>
#include <thread>

#include "codec/chunk.h"

namespace stagehand::codec {
namespace {

// Calls work(number) for all numbers below `count`, on up to `threads` threads.
template <class Work>
void on_threads(uint64_t count, uint32_t threads, Work work) {
    std::atomic<uint64_t> next = 0;
    const auto run = [&]() noexcept {
        for (uint64_t number; (number = next++) < count;) work(number);
    };
    std::vector<std::thread> helpers;
    try {
        helpers.reserve(std::min<uint64_t>(threads, count));
        while (helpers.size() + 1 < std::min<uint64_t>(threads, count)) helpers.emplace_back(run);
    } catch (const std::exception&) {
        // There are no more threads, or there is no memory for one. Those that are there do everything.
    }
    run();
    for (std::thread& helper : helpers) helper.join();
}

}  // namespace

Status Packer::pack(FloatFormat format, const void* from, uint64_t bytes, uint32_t threads) {
    const uint32_t element = fields_of(format).bytes();
    if (bytes % element) return Status(SH_ERROR_INVALID_ARGUMENT, "a part of an element is left over");
    if (bytes >= kMostContents) return Status(SH_ERROR_INVALID_ARGUMENT, "a tensor of 32 GiB or more cannot be packed");
    const uint64_t elements = bytes / element, chunks = (elements + kChunkElements - 1) / kChunkElements;
    largest_ = largest_chunk_bytes(format, kChunkElements);
    try {
        sizes_.assign(chunks, 0);
        places_.assign(chunks, Place());
        if (chunks * largest_ > room_bytes_) {
            room_bytes_ = 0;
            room_.reset(static_cast<uint8_t*>(std::malloc(chunks * largest_)));
            if (!room_) throw std::bad_alloc();
            room_bytes_ = chunks * largest_;
        }
        on_threads(chunks, threads, [&](uint64_t number) {
            const uint64_t first = number * kChunkElements;
            const auto count = static_cast<uint32_t>(std::min<uint64_t>(elements - first, kChunkElements));
            const void* const begin = static_cast<const uint8_t*>(from) + first * element;
            sizes_[number] = static_cast<uint32_t>(pack_chunk(format, begin, count, room_.get() + number * largest_));
            places_[number].checksum = chunk_checksum(chunk(number));
        });
        frame_bytes_ = frame_head_bytes(format, bytes);
        for (uint64_t number = 0; number < chunks; number++) {
            places_[number].units = static_cast<uint32_t>(frame_bytes_ / kTileAlignment);
            frame_bytes_ += sizes_[number];
        }
        head_ = frame_head(format, bytes, places_, frame_bytes_);
        return Status();
    } catch (const std::bad_alloc&) {
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY, "no memory for a packed tensor");
    }
}

void Packer::write(uint8_t* to, uint32_t threads) const {
    std::copy(head_.begin(), head_.end(), to);
    on_threads(sizes_.size(), threads, [&](uint64_t number) {
        const std::span<const uint8_t> bytes = chunk(number);
        std::memcpy(to + uint64_t(places_[number].units) * kTileAlignment, bytes.data(), bytes.size());
    });
}

}  // namespace stagehand::codec
