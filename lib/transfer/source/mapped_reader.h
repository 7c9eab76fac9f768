// MappedReader: copies out of mappings whose file may shrink, where touching a byte would raise SIGBUS.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace stagehand::transfer {

// For one thread.
class MappedReader {
public:
    // `vm_read` false: as if the system forbade process_vm_readv().
    explicit MappedReader(bool vm_read) : vm_read_(vm_read) {}
    ~MappedReader();
    MappedReader(const MappedReader&) = delete;
    MappedReader& operator=(const MappedReader&) = delete;

    // SH_ERROR_SOURCE names the first address that cannot be read.
    Status read(const char* from, char* to, uint64_t bytes);

private:
    // Bytes that were copied, at least 1, or -errno.
    int64_t read_some(const char* from, char* to, uint64_t bytes);
    int64_t read_through_pipe(const char* from, char* to, uint64_t bytes);
    void close_pipe();

    bool vm_read_;
    int pipe_[2] = {
        -1, -1};  // where process_vm_readv() is forbidden: the kernel copies into a pipe, and out of it
    uint64_t pipe_bytes_ = 0;
};

}  // namespace stagehand::transfer
