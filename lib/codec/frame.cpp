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

#include "codec/checksum.h"
#include "codec/chunk.h"
#include "codec/tile.h"

namespace stagehand::codec {
namespace {

constexpr char kMagic[4] = {'S', 'H', 'P', 'K'};
constexpr uint16_t kVersion = 2;
constexpr uint64_t kMostBytes = uint64_t(1) << 35;  // places have 32 bits, in units of 16 bytes

struct Header {
    char magic[4];
    uint16_t version;
    uint8_t format;
    uint8_t reserved;
    uint64_t contents_bytes;
    uint64_t frame_bytes;
    uint32_t chunk_elements;
    uint32_t chunks;
    uint64_t checksum;
    uint8_t zeros[24];
};
static_assert(sizeof(Header) == kFrameHeaderBytes);

struct Place {
    uint32_t units;
    uint32_t checksum;
};
static_assert(sizeof(Place) == 8);

constexpr uint64_t index_end(uint64_t chunks) { return tile_aligned(kFrameHeaderBytes + chunks * sizeof(Place)); }
constexpr uint64_t tile_size(FloatFormat format) { return uint64_t(kTileElements) * fields_of(format).bytes(); }
constexpr uint64_t chunk_size(FloatFormat format) { return kChunkTiles * tile_size(format); }
constexpr uint64_t chunks_of(FloatFormat format, uint64_t bytes) {
    return (bytes + chunk_size(format) - 1) / chunk_size(format);
}

uint32_t elements_in(FloatFormat format, uint64_t contents_bytes, uint64_t chunk) {
    const uint64_t elements = contents_bytes / fields_of(format).bytes();
    return static_cast<uint32_t>(std::min<uint64_t>(elements - chunk * kChunkElements, kChunkElements));
}

uint32_t chunk_checksum(std::span<const uint8_t> chunk) {
    return static_cast<uint32_t>(checksum(chunk.data(), chunk.size()));
}

// Packs the chunks of one tensor on several threads. A thread packs a chunk into memory of its own, and
// adds it to the frame when all chunks before are there.
class Packer {
public:
    Packer(FloatFormat format, const uint8_t* from, uint64_t bytes, std::vector<uint8_t>* out)
        : format_(format), from_(from), bytes_(bytes), chunks_(chunks_of(format, bytes)), frame_(*out) {}

    Status pack(uint32_t threads) {
        frame_.clear();
        frame_.resize(index_end(chunks_));
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
        write_header();
        return Status();
    }

private:
    void pack_chunks() noexcept {
        try {
            std::vector<uint8_t> chunk(largest_chunk_bytes(format_, kChunkElements));
            for (uint64_t number; (number = next_++) < chunks_;) {
                const uint8_t* const from = from_ + number * chunk_size(format_);
                const uint64_t bytes = pack_chunk(format_, from, elements_in(format_, bytes_, number), chunk.data());
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
        const Place place = {static_cast<uint32_t>(frame_.size() / kTileAlignment), sum};
        std::memcpy(frame_.data() + kFrameHeaderBytes + number * sizeof place, &place, sizeof place);
        if (number == 0)
            frame_.reserve(frame_.size() +
                           chunks_ * (chunk.size() + chunk.size() / 16));  // as if all were like this one
        frame_.insert(frame_.end(), chunk.begin(), chunk.end());
        there_++;
        added_.notify_all();
    }

    void write_header() {
        Header header = {};
        std::memcpy(header.magic, kMagic, sizeof kMagic);
        header.version = kVersion;
        header.format = static_cast<uint8_t>(format_);
        header.contents_bytes = bytes_;
        header.frame_bytes = frame_.size();
        header.chunk_elements = kChunkElements;
        header.chunks = static_cast<uint32_t>(chunks_);
        std::memcpy(frame_.data(), &header, sizeof header);
        header.checksum = checksum(frame_.data(), index_end(chunks_));
        std::memcpy(frame_.data(), &header, sizeof header);
    }

    const FloatFormat format_;
    const uint8_t* const from_;
    const uint64_t bytes_, chunks_;
    std::atomic<uint64_t> next_ = 0;  // the chunk to pack
    std::mutex mutex_;                // guards what follows
    std::condition_variable added_;
    std::vector<uint8_t>& frame_;
    uint64_t there_ = 0;  // chunks in the frame
    bool lacks_memory_ = false;
};

Status refused(const std::string& why) { return Status(SH_ERROR_INVALID_ARGUMENT, "not a packed tensor: " + why); }

}  // namespace

Status pack_frame(FloatFormat format, const void* from, uint64_t bytes, uint32_t threads, std::vector<uint8_t>* out) {
    if (bytes % fields_of(format).bytes())
        return Status(SH_ERROR_INVALID_ARGUMENT, "a part of an element is left over");
    if (bytes >= kMostBytes) return Status(SH_ERROR_INVALID_ARGUMENT, "a tensor of 32 GiB or more cannot be packed");
    try {
        return Packer(format, static_cast<const uint8_t*>(from), bytes, out).pack(threads);
    } catch (const std::bad_alloc&) {
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY, "no memory for a packed tensor");
    }
}

Status Frame::open(std::span<const uint8_t> bytes, Frame* out) {
    Header header;
    if (bytes.size() < sizeof header) return refused("it has " + std::to_string(bytes.size()) + " bytes");
    std::memcpy(&header, bytes.data(), sizeof header);
    if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return refused("it does not begin with \"SHPK\"");
    if (header.version != kVersion) return refused("version " + std::to_string(header.version) + " is unknown");
    const auto format = format_of(header.format);
    if (!format) return refused("format " + std::to_string(header.format) + " is unknown");
    if (header.frame_bytes != bytes.size())
        return refused("it has " + std::to_string(bytes.size()) + " bytes instead of " +
                       std::to_string(header.frame_bytes));
    const uint64_t contents = header.contents_bytes;
    if (contents >= kMostBytes || contents % fields_of(*format).bytes() || header.chunk_elements != kChunkElements ||
        header.chunks != chunks_of(*format, contents))
        return refused("its sizes contradict each other");
    const uint64_t begin = index_end(header.chunks);
    if (begin > bytes.size()) return refused("its index is not whole");
    std::vector<uint8_t> checked;
    try {
        checked.assign(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(begin));
    } catch (const std::bad_alloc&) {
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY, "no memory for the index of a packed tensor");
    }
    std::memset(checked.data() + offsetof(Header, checksum), 0, sizeof header.checksum);
    if (checksum(checked.data(), checked.size()) != header.checksum) return refused("its checksum is another one");
    out->bytes_ = bytes;
    out->format_ = *format;
    out->contents_bytes_ = contents;
    out->chunks_ = header.chunks;
    return out->check_chunks(begin);
}

// Every chunk has a size that a chunk can have. So the contents are never much larger than the frame.
Status Frame::check_chunks(uint64_t begin) const {
    if (begin != (chunks_ ? place(0) : bytes_.size())) return refused("its chunks do not follow each other");
    for (uint64_t i = 0; i < chunks_; i++) {
        const uint32_t elements = elements_of_chunk(i);
        const uint64_t at = place(i), end = place(i + 1);
        if (end < at || end > bytes_.size() || end - at < smallest_chunk_bytes(format_, elements) ||
            end - at > largest_chunk_bytes(format_, elements))
            return refused("chunk " + std::to_string(i) + " has a size that no chunk has");
    }
    return Status();
}

uint32_t Frame::elements_of_chunk(uint64_t index) const { return elements_in(format_, contents_bytes_, index); }

uint64_t Frame::place(uint64_t index) const {
    if (index == chunks_) return bytes_.size();
    Place place;
    std::memcpy(&place, bytes_.data() + kFrameHeaderBytes + index * sizeof place, sizeof place);
    return uint64_t(place.units) * kTileAlignment;
}

std::span<const uint8_t> Frame::chunk(uint64_t index) const {
    return bytes_.subspan(place(index), place(index + 1) - place(index));
}

uint64_t Frame::tiles() const { return (contents_bytes_ + tile_size(format_) - 1) / tile_size(format_); }

uint64_t Frame::raw_tiles() const {
    uint64_t count = 0;
    for (uint64_t i = 0; i < chunks_; i++) {
        Tiles tiles;
        if (!find_tiles(chunk(i), elements_of_chunk(i), &tiles)) continue;
        for (const std::span<const uint8_t> tile : tiles) count += !tile.empty() && is_raw_tile(tile);
    }
    return count;
}

Status Frame::find_checked(uint64_t index, Tiles* out) const {
    const std::span<const uint8_t> packed = chunk(index);
    Place place;
    std::memcpy(&place, bytes_.data() + kFrameHeaderBytes + index * sizeof place, sizeof place);
    if (chunk_checksum(packed) != place.checksum)
        return refused("the checksum of chunk " + std::to_string(index) + " is another one");
    if (!find_tiles(packed, elements_of_chunk(index), out))
        return refused("chunk " + std::to_string(index) + " contradicts itself");
    return Status();
}

Status Frame::unpack(uint64_t offset, uint64_t bytes, void* to) const {
    if (offset > contents_bytes_ || bytes > contents_bytes_ - offset)
        return Status(SH_ERROR_INVALID_ARGUMENT, "the range ends behind the contents of the packed tensor");
    auto* next = static_cast<uint8_t*>(to);
    const uint64_t end = offset + bytes, tile_bytes = tile_size(format_);
    Tiles tiles;
    uint64_t found = UINT64_MAX;  // the chunk that `tiles` are of
    std::vector<uint8_t> whole;   // a tile of which only a part is wanted
    for (uint64_t at = offset; at < end;) {
        const uint64_t chunk = at / chunk_size(format_), begin = at / tile_bytes * tile_bytes;
        const uint64_t tile_end = std::min(begin + tile_bytes, contents_bytes_), take = std::min(tile_end, end) - at;
        if (chunk != found) SH_TRY(find_checked(found = chunk, &tiles));
        const auto tile = static_cast<uint32_t>(begin / tile_bytes % kChunkTiles);
        const bool partly = at != begin || take != tile_end - begin;
        if (partly) try {
                whole.resize(tile_bytes);
            } catch (const std::bad_alloc&) {
                return Status(SH_ERROR_OUT_OF_HOST_MEMORY, "no memory for a tile of a packed tensor");
            }
        if (!unpack_tile(format_, tiles[tile], elements_of_tile(elements_of_chunk(chunk), tile),
                         partly ? whole.data() : next))
            return refused("chunk " + std::to_string(chunk) + " contradicts itself");
        if (partly) std::memcpy(next, whole.data() + (at - begin), take);
        next += take;
        at += take;
    }
    return Status();
}

}  // namespace stagehand::codec
