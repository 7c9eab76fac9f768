// Reader: brings ranges of sources into host memory, by calls that return an error where touching the bytes
// would kill.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "transfer/source/source.h"

namespace stagehand::transfer {

// Bytes [offset, offset + bytes) of a source, to be written at `to`.
struct ReadRequest {
    const Source* source = nullptr;
    uint64_t offset = 0;
    char* to = nullptr;
    uint64_t bytes = 0;
};

// What a reader may use. All that the system has, unless a test takes something away.
struct ReaderOptions {
    bool vm_read = true;    // process_vm_readv
    bool direct = true;     // reads past the page cache
    bool uring = true;      // io_uring; without it direct reads follow each other
    bool cachestat = true;  // ask the kernel what is cached; without it, sample
};

class MappedReader;
class FileReader;

// For one thread. What it needs is made when it is first needed and kept. Contents of `to` are undefined
// after a failure.
class Reader {
public:
    explicit Reader(const ReaderOptions& options = {});
    ~Reader();
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    // Fills all requests. Neighbours of one file are read together; reads that have to wait for a disk run at
    // the same time. SH_ERROR_SOURCE, SH_ERROR_CALLBACK or SH_ERROR_OUT_OF_HOST_MEMORY: the text names the
    // range.
    Status read(std::span<const ReadRequest> requests);

private:
    Status read_all(std::span<const ReadRequest> requests);

    const ReaderOptions options_;
    std::unique_ptr<MappedReader> mapped_;
    std::unique_ptr<FileReader> files_;
};

}  // namespace stagehand::transfer
