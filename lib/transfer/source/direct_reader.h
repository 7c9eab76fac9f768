// DirectReader: reads ranges of files past the page cache, with the alignment that such reads need. It reads many
// ranges at once through io_uring.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "transfer/source/uring.h"

namespace stagehand::transfer {

struct FileRange;

// One direct read of an aligned range of a file. It reads into the target, or into a buffer of the reader if the target
// is not aligned.
struct DirectRead {
    const FileRange* range = nullptr;
    uint64_t offset = 0;    // in the file, aligned
    uint64_t bytes = 0;     // aligned
    uint64_t skip = 0;      // the wanted bytes begin here ...
    uint64_t wanted = 0;    // ... and this is their number
    char* to = nullptr;     // target of the wanted bytes
    bool in_place = false;  // reads directly to `to`; skip is 0 then, and wanted equals bytes
};

// Used by one thread.
class DirectReader {
public:
    // If `uring` is false, the reader behaves as on a system without io_uring.
    explicit DirectReader(bool uring);
    ~DirectReader();
    DirectReader(const DirectReader&) = delete;
    DirectReader& operator=(const DirectReader&) = delete;

    // Every range must have a direct_file. No read is under way when the call returns.
    Status read(std::span<const FileRange> ranges);

private:
    Status read_one_by_one();
    Status read_by_ring();
    Status settle(const DirectRead& read, const char* buffer, int64_t result);
    bool make_buffers();

    bool uring_;
    std::unique_ptr<Uring> ring_;
    std::vector<DirectRead> reads_;
    void* buffers_ = nullptr;
};

// Cuts a range into direct reads.
void cut_direct(const FileRange& range, std::vector<DirectRead>* out_reads);

}  // namespace stagehand::transfer
