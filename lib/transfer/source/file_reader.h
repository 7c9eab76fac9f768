// FileReader: reads ranges of files through the page cache if they are cached, and past the page cache if they are not.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "transfer/source/direct_reader.h"
#include "transfer/source/reader.h"
#include "transfer/source/source.h"

namespace stagehand::transfer {

// A range of a file and its target in memory.
struct FileRange {
    OpenFile* opened = nullptr;  // may be null
    int file = -1;
    int direct_file = -1;
    uint64_t offset = 0;
    char* to = nullptr;
    uint64_t bytes = 0;
};

// Reads the whole range through the page cache. Returns SH_ERROR_SOURCE if an I/O error occurs or the file has shrunk.
Status read_buffered(const FileRange& range);

// Used by one thread.
class FileReader {
public:
    explicit FileReader(const ReaderOptions& options) : options_(options) {}

    // Collects a range. A range that continues the one before, in the file and in memory, becomes part of it.
    void add(const Source& source, uint64_t offset, char* to, uint64_t bytes);
    // Reads all ranges that were collected.
    Status read();
    // Forgets all ranges that were collected.
    void forget() { ranges_.clear(); }

private:
    Status read_or_defer(const FileRange& range);

    const ReaderOptions options_;
    std::vector<FileRange> ranges_;
    std::vector<FileRange> missing_;  // ranges that are not in the page cache
    std::unique_ptr<DirectReader> direct_;
};

}  // namespace stagehand::transfer
