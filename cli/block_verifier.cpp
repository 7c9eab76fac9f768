#include "block_verifier.h"

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <span>

#include <fmt/format.h>
#include <xxhash.h>

#include "packing/packed_segment.h"

namespace stagehand::cli {

namespace {

constexpr std::uint64_t buffer_bytes = std::uint64_t{8} << 20;

// The XXH3 checksum of bytes that arrive in parts.
class Checksum {
public:
    Checksum() : state_(XXH3_createState()) {
        if (state_ == nullptr) throw std::bad_alloc();
        XXH3_64bits_reset(state_.get());
    }

    void add(const void* bytes, std::uint64_t count) { XXH3_64bits_update(state_.get(), bytes, count); }
    std::uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

private:
    struct Free {
        void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
    };
    std::unique_ptr<XXH3_state_t, Free> state_;
};

}  // namespace

BlockVerifier::BlockVerifier(sh_device* device, const std::vector<model::Block>& blocks, const ModelFiles& files)
    : blocks_(blocks), files_(files), buffer_(device, buffer_bytes), file_checksums_(blocks.size()) {}

std::uint64_t BlockVerifier::file_checksum(const model::Block& block) {
    Checksum checksum;
    for (const model::Segment& segment : block.segments) {
        std::optional<PackedSegment> packed;
        if (segment.packed_bytes != 0) packed.emplace(files_, segment);
        for (std::uint64_t done = 0; done < segment.bytes;) {
            const std::uint64_t count = std::min(buffer_bytes, segment.bytes - done);
            const std::span<std::byte> to(static_cast<std::byte*>(buffer_.data()), count);
            if (packed)
                packed->read(done, to);
            else
                files_.read(segment.file, segment.offset + done, to);
            checksum.add(buffer_.data(), count);
            done += count;
        }
    }
    return checksum.value();
}

std::uint64_t BlockVerifier::device_checksum(sh_runtime* runtime, sh_block block, sh_stream stream,
                                             const model::Block& known) {
    Checksum checksum;
    for (std::uint64_t done = 0; done < known.bytes;) {
        const std::uint64_t count = std::min(buffer_bytes, known.bytes - done);
        if (const sh_status status = sh_read_block(runtime, block, stream, done, buffer_.data(), count); status < 0)
            check(status, fmt::format("reading block {} back", known.name));
        checksum.add(buffer_.data(), count);
        done += count;
    }
    return checksum.value();
}

bool BlockVerifier::equal(sh_runtime* runtime, sh_block block, sh_stream stream, std::size_t index) {
    const model::Block& known = blocks_[index];
    if (!file_checksums_[index]) file_checksums_[index] = file_checksum(known);
    return device_checksum(runtime, block, stream, known) == *file_checksums_[index];
}

}  // namespace stagehand::cli
