// Packer: makes frames on several threads.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "codec/float_format.h"
#include "codec/frame_index.h"

namespace stagehand::codec {

// Nobody knows where a chunk lies before those in front of it are packed. So each chunk is packed to a place of its
// own, with room for the largest one, and all are copied together at the end. Memory without a chunk in it is never
// touched.
class Packer {
public:
    // Packs `bytes` of contents, a multiple of the size of an element and less than kMostContents, with up to `threads`
    // threads. What was packed before is gone, and its memory is used again. May lack memory.
    Status pack(FloatFormat format, const void* from, uint64_t bytes, uint32_t threads);
    // Of the frame. It may be larger than the contents by less than 1 %, or by one chunk.
    uint64_t frame_bytes() const { return frame_bytes_; }
    // Writes the frame, which pack() has packed.
    void write(uint8_t* to, uint32_t threads) const;

private:
    struct Free {
        void operator()(uint8_t* memory) const noexcept { std::free(memory); }
    };

    std::span<const uint8_t> chunk(uint64_t number) const { return {room_.get() + number * largest_, sizes_[number]}; }

    std::unique_ptr<uint8_t, Free> room_;  // of the chunks
    uint64_t room_bytes_ = 0, largest_ = 0;
    std::vector<uint32_t> sizes_;  // of the chunks
    std::vector<Place> places_;
    std::vector<uint8_t> head_;
    uint64_t frame_bytes_ = 0;
};

}  // namespace stagehand::codec
