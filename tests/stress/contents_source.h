// BlockSource: a source of a block. It is of any kind, or pinned memory in pieces: many small pieces with guards
// between them, or pages that touch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "contents_stamp.h"
#include "engine.h"

namespace stagehand::test {

enum class Kind { pinned, scattered, touching, pageable, file, fill };

class BlockSource {
public:
    // Throws if there is no memory for the source.
    BlockSource(sh_device* device, Kind kind, const Version& contents, uint64_t piece_bytes);
    ~BlockSource();
    BlockSource(const BlockSource&) = delete;
    BlockSource& operator=(const BlockSource&) = delete;

    std::vector<sh_segment> segments();
    void write(const Version& contents);
    // Returns the bytes that differ from the version, and the guards that have changed. Empty if all bytes are right.
    std::string check(const Stamp& wanted) const;

private:
    std::vector<uint8_t> read() const;

    uint64_t place_of(uint64_t offset) const { return offset / piece_ * stride_; }  // of a piece, in the memory

    sh_device* const device_;
    const uint64_t bytes_, piece_, stride_;
    std::unique_ptr<Source> whole_;  // unless it is scattered
    uint8_t* memory_ = nullptr;      // pieces, each followed by a guard of its size, or by the next one
    uint64_t memory_bytes_ = 0;
};

}  // namespace stagehand::test
