// Reads what a packed tensor holds, for the comparison with what is on the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codec/frame_index.h"
#include "model/grouping.h"
#include "model_files.h"

namespace stagehand::cli {

class PackedSegment {
public:
    // A segment of a packed tensor. `files` must outlive this object. Throws ModelError if there is no packed tensor.
    PackedSegment(const ModelFiles& files, const model::Segment& segment);

    // Fills `to` with bytes of the segment. Throws ModelError if a part of the packed tensor is not as it was packed.
    void read(std::uint64_t offset, std::span<std::byte> to);

private:
    std::span<const std::uint8_t> read_frame(std::uint64_t offset, std::uint64_t bytes);

    const ModelFiles& files_;
    const model::Segment& segment_;
    codec::FrameIndex index_;
    std::vector<std::uint8_t> packed_;
};

}  // namespace stagehand::cli
