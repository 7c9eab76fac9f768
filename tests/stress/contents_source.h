// BlockSource: where a block's bytes come from: any kind of source, and pinned memory in many small pieces with guards between them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "contents_stamp.h"
#include "engine.h"

namespace stagehand::test {

enum class Kind { pinned, scattered, pageable, file, fill };

class BlockSource {
public:
    // Throws when there is no memory for it.
    BlockSource(sh_device* device, Kind kind, const Version& contents, uint64_t piece_bytes);
    ~BlockSource();
    BlockSource(const BlockSource&) = delete;
    BlockSource& operator=(const BlockSource&) = delete;

    std::vector<sh_segment> segments();
    void write(const Version& contents);
    // What is not of the version, and what between the pieces has changed; empty when all is right.
    std::string check(const Stamp& wanted) const;

private:
    std::vector<uint8_t> read() const;

    sh_device* const device_;
    const uint64_t bytes_, piece_;
    std::unique_ptr<Source> whole_;   // unless it is scattered
    uint8_t* memory_ = nullptr;       // pieces, each followed by a guard of its size
    uint64_t memory_bytes_ = 0;
};

}  // namespace stagehand::test
