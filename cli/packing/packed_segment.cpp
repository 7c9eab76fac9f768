#include "packing/packed_segment.h"

#include <algorithm>

#include "packing/codec_error.h"

namespace stagehand::cli {

PackedSegment::PackedSegment(const ModelFiles& files, const model::Segment& segment)
    : files_(files), segment_(segment) {
    const auto check = [&](const Status& status) { check_codec(status, files_.path(segment_.file), segment_.offset); };
    std::uint64_t bytes = 0;
    check(codec::FrameIndex::head_bytes(
        read_frame(0, std::min<std::uint64_t>(codec::kFrameHeaderBytes, segment.packed_bytes)), segment.packed_bytes,
        &bytes));
    check(codec::FrameIndex::open(read_frame(0, bytes), segment.packed_bytes, &index_));
    if (index_.contents_bytes() != segment.contents_bytes)
        check(Status(SH_ERROR_INVALID_ARGUMENT, "is not what the metadata says"));
}

std::span<const std::uint8_t> PackedSegment::read_frame(std::uint64_t offset, std::uint64_t bytes) {
    packed_.resize(bytes);
    files_.read(segment_.file, segment_.offset + offset, std::as_writable_bytes(std::span(packed_)));
    return packed_;
}

void PackedSegment::read(std::uint64_t offset, std::span<std::byte> to) {
    const Status status = index_.unpack_range(segment_.packed_offset + offset, to.size(), to.data(),
                                              [this](std::uint64_t chunk, std::span<const std::uint8_t>* out) {
                                                  const std::uint64_t begin = index_.begin_of(chunk);
                                                  *out = read_frame(begin, index_.begin_of(chunk + 1) - begin);
                                                  return Status();
                                              });
    check_codec(status, files_.path(segment_.file), segment_.offset);
}

}  // namespace stagehand::cli
