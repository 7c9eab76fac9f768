// Reader: brings ranges of sources into host memory. Its calls return an error where a plain access to the bytes would
// kill the process.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "transfer/source/source.h"

namespace stagehand::transfer {

// The bytes [offset, offset + bytes) of a source, and their target `to`.
struct ReadRequest {
    const Source* source = nullptr;
    uint64_t offset = 0;
    char* to = nullptr;
    uint64_t bytes = 0;
};

// The system features that a reader may use. By default a reader uses all that the system has. Tests switch some off.
struct ReaderOptions {
    bool vm_read = true;    // process_vm_readv
    bool direct = true;     // reads past the page cache
    bool uring = true;      // io_uring; without it, direct reads run one after the other
    bool cachestat = true;  // ask the kernel what is cached; without it, take samples
};

class MappedReader;
class FileReader;
class PackedReader;

// Used by one thread. The reader makes each of its parts when it first needs the part, and keeps it. The contents of
// `to` are undefined after a failure.
class Reader {
public:
    explicit Reader(const ReaderOptions& options = {});
    ~Reader();
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    // Fills all requests. Neighbouring ranges of one file are read together, and reads that wait for a disk run at the
    // same time. Fails with SH_ERROR_SOURCE, SH_ERROR_CALLBACK or SH_ERROR_OUT_OF_HOST_MEMORY. The text of the first
    // two names the range.
    Status read(std::span<const ReadRequest> requests);

private:
    Status read_all(std::span<const ReadRequest> requests);

    const ReaderOptions options_;
    std::unique_ptr<MappedReader> mapped_;
    std::unique_ptr<FileReader> files_;
    std::unique_ptr<PackedReader> packed_;
};

}  // namespace stagehand::transfer
