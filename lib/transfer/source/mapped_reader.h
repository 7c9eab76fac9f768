// MappedReader: copies out of mappings whose file may shrink. Touching a byte past the end of the file would raise
// SIGBUS.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "platform/descriptor.h"

namespace stagehand::transfer {

// Used by one thread.
class MappedReader {
public:
    // If `vm_read` is false, the reader behaves as on a system that forbids process_vm_readv().
    explicit MappedReader(bool vm_read) : vm_read_(vm_read) {}
    MappedReader(const MappedReader&) = delete;
    MappedReader& operator=(const MappedReader&) = delete;

    // SH_ERROR_SOURCE names the range that cannot be read.
    Status read(const char* from, char* to, uint64_t bytes);

private:
    // Returns the number of bytes that were copied, at least 1, or -errno.
    int64_t read_some(const char* from, char* to, uint64_t bytes);
    int64_t read_through_pipe(const char* from, char* to, uint64_t bytes);
    void close_pipe();

    bool vm_read_;
    platform::Descriptor
        pipe_[2];  // used if process_vm_readv() is forbidden: the kernel copies into the pipe and out of it
    uint64_t pipe_bytes_ = 0;
};

}  // namespace stagehand::transfer
