#include "codec/frame.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <thread>

#include "codec/chunk.h"
#include "codec/tile.h"

namespace stagehand::codec {
namespace {

constexpr uint64_t tile_size(FloatFormat format) { return uint64_t(kTileElements) * fields_of(format).bytes(); }
constexpr uint64_t chunk_size(FloatFormat format) { return kChunkTiles * tile_size(format); }

// Packs the chunks of one tensor on several threads. A thread packs a chunk into memory of its own, and
// adds it to the frame when all chunks before are there.
class Packer {
public:
    Packer(FloatFormat format, const uint8_t* from, uint64_t bytes, std::vector<uint8_t>* out)
        : format_(format),
          from_(from),
          bytes_(bytes),
          chunks_((bytes + chunk_size(format) - 1) / chunk_size(format)),
          frame_(*out) {}

    Status pack(uint32_t threads) {
        frame_.clear();
        frame_.resize(frame_head_bytes(format_, bytes_));
        places_.resize(chunks_);
        std::vector<std::thread> helpers;
        helpers.reserve(std::min<uint64_t>(threads, chunks_));
        try {
            while (helpers.size() + 1 < std::min<uint64_t>(threads, chunks_))
                helpers.emplace_back([this] { pack_chunks(); });
        } catch (const std::exception&) {
            // There are no more threads, or there is no memory for one. Those that are there pack everything.
        }
        pack_chunks();
        for (std::thread& helper : helpers) helper.join();
        if (lacks_memory_) return Status(SH_ERROR_OUT_OF_HOST_MEMORY, "no memory for a packed tensor");
        const std::vector<uint8_t> head = frame_head(format_, bytes_, places_, frame_.size());
        std::copy(head.begin(), head.end(), frame_.begin());
        return Status();
    }

private:
    void pack_chunks() noexcept {
        try {
            std::vector<uint8_t> chunk(largest_chunk_bytes(format_, kChunkElements));
            for (uint64_t number; (number = next_++) < chunks_;) {
                const uint8_t* const from = from_ + number * chunk_size(format_);
                const uint64_t bytes = pack_chunk(format_, from, elements_in(number), chunk.data());
                add(number, {chunk.data(), bytes});
            }
        } catch (const std::bad_alloc&) {
            const std::lock_guard lock(mutex_);
            lacks_memory_ = true;
            added_.notify_all();
        }
    }

    void add(uint64_t number, std::span<const uint8_t> chunk) {
        const uint32_t sum = chunk_checksum(chunk);
        std::unique_lock lock(mutex_);
        added_.wait(lock, [&] { return there_ == number || lacks_memory_; });
        if (lacks_memory_) return;
        places_[number] = {static_cast<uint32_t>(frame_.size() / kTileAlignment), sum};
        if (number == 0)
            frame_.reserve(frame_.size() +
                           chunks_ * (chunk.size() + chunk.size() / 16));  // as if all were like this one
        frame_.insert(frame_.end(), chunk.begin(), chunk.end());
        there_++;
        added_.notify_all();
    }

    uint32_t elements_in(uint64_t chunk) const {
        const uint64_t elements = bytes_ / fields_of(format_).bytes();
        return static_cast<uint32_t>(std::min<uint64_t>(elements - chunk * kChunkElements, kChunkElements));
    }

    const FloatFormat format_;
    const uint8_t* const from_;
    const uint64_t bytes_, chunks_;
    std::atomic<uint64_t> next_ = 0;  // the chunk to pack
    std::mutex mutex_;                // guards what follows
    std::condition_variable added_;
    std::vector<uint8_t>& frame_;
    std::vector<Place> places_;
    uint64_t there_ = 0;  // chunks in the frame
    bool lacks_memory_ = false;
};

}  // namespace

Status pack_frame(FloatFormat format, const void* from, uint64_t bytes, uint32_t threads, std::vector<uint8_t>* out) {
    if (bytes % fields_of(format).bytes())
        return Status(SH_ERROR_INVALID_ARGUMENT, "a part of an element is left over");
    if (bytes >= kMostContents) return Status(SH_ERROR_INVALID_ARGUMENT, "a tensor of 32 GiB or more cannot be packed");
    try {
        return Packer(format, static_cast<const uint8_t*>(from), bytes, out).pack(threads);
    } catch (const std::bad_alloc&) {
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY, "no memory for a packed tensor");
    }
}

Status Frame::open(std::span<const uint8_t> bytes, Frame* out) {
    SH_TRY(FrameIndex::open(bytes, bytes.size(), &out->index_));
    out->bytes_ = bytes;
    return Status();
}

std::span<const uint8_t> Frame::chunk(uint64_t index) const {
    return bytes_.subspan(index_.begin_of(index), index_.begin_of(index + 1) - index_.begin_of(index));
}

uint64_t Frame::tiles() const { return (contents_bytes() + tile_size(format()) - 1) / tile_size(format()); }

uint64_t Frame::raw_tiles() const {
    uint64_t count = 0;
    for (uint64_t i = 0; i < chunks(); i++) {
        Tiles tiles;
        if (!find_tiles(chunk(i), index_.elements_of(i), &tiles)) continue;
        for (const std::span<const uint8_t> tile : tiles) count += !tile.empty() && is_raw_tile(tile);
    }
    return count;
}

Status Frame::unpack(uint64_t offset, uint64_t bytes, void* to) const {
    if (offset > contents_bytes() || bytes > contents_bytes() - offset)
        return Status(SH_ERROR_INVALID_ARGUMENT, "the range ends behind the contents of the packed tensor");
    return index_.unpack_range(offset, bytes, to, [this](uint64_t number, std::span<const uint8_t>* out) {
        *out = chunk(number);
        return Status();
    });
}

}  // namespace stagehand::codec
