// DirectReader: reads ranges of files past the page cache, many at a time through io_uring, with the
// alignment that asks for.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"

namespace stagehand::transfer {

struct FileRange;

// One direct read: an aligned range of a file, into its place or, where that is not aligned, into a buffer of
// the reader's.
struct DirectRead {
    const FileRange* range = nullptr;
    uint64_t offset = 0;    // in the file, aligned
    uint64_t bytes = 0;     // aligned
    uint64_t skip = 0;      // what was wanted begins here ...
    uint64_t wanted = 0;    // ... and has this many bytes
    char* to = nullptr;     // where the wanted bytes go
    bool in_place = false;  // read straight to `to`; skip is 0, and wanted is bytes
};

// For one thread.
class DirectReader {
public:
    // `uring` false: as if the system had no io_uring.
    explicit DirectReader(bool uring);
    ~DirectReader();
    DirectReader(const DirectReader&) = delete;
    DirectReader& operator=(const DirectReader&) = delete;

    // Every range has a direct_file. When it returns, no read is under way.
    Status read(std::span<const FileRange> ranges);

private:
    class Ring;

    Status read_one_by_one();
    Status settle(const DirectRead& read, const char* buffer, int64_t result);
    bool make_buffers();

    bool uring_;
    std::unique_ptr<Ring> ring_;
    std::vector<DirectRead> reads_;
    void* buffers_ = nullptr;
    uint64_t buffers_bytes_ = 0;
};

// Cuts a range into direct reads.
void cut_direct(const FileRange& range, std::vector<DirectRead>* out_reads);

}  // namespace stagehand::transfer
