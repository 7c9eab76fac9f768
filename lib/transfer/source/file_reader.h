// FileReader: reads ranges of files, out of the page cache where they are there, and past it where they are
// not.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "transfer/source/direct_reader.h"
#include "transfer/source/reader.h"
#include "transfer/source/source.h"

namespace stagehand::transfer {

// A range of a file and where it goes.
struct FileRange {
    OpenFile* opened = nullptr;  // may be null
    int file = -1;
    int direct_file = -1;
    uint64_t offset = 0;
    char* to = nullptr;
    uint64_t bytes = 0;
};

// Reads all of it through the page cache. SH_ERROR_SOURCE: an I/O error, or the file has shrunk.
Status read_buffered(const FileRange& range);

// For one thread.
class FileReader {
public:
    explicit FileReader(const ReaderOptions& options) : options_(options) {}

    // Collects a range; what continues the one before, in the file and in memory, becomes part of it.
    void add(const Source& source, uint64_t offset, char* to, uint64_t bytes);
    // Reads all that was collected.
    Status read();
    // Forgets what was collected.
    void forget() { ranges_.clear(); }

private:
    Status read_or_defer(const FileRange& range);

    const ReaderOptions options_;
    std::vector<FileRange> ranges_;
    std::vector<FileRange> missing_;  // not in the page cache
    std::unique_ptr<DirectReader> direct_;
};

}  // namespace stagehand::transfer
