// OpenFile: a file that sources read. It is opened once for reads through the page cache and once for direct reads.
#pragma once

#include <atomic>
#include <cstdint>

#include <sys/types.h>

#include "base/status.h"
#include "platform/descriptor.h"

namespace stagehand::transfer {

struct OpenFile {
    dev_t device = 0;
    ino_t inode = 0;
    platform::Descriptor file;
    platform::Descriptor direct_file;  // not open if the file system refuses direct reads
    uint32_t memory_alignment = 4096;  // of direct reads
    uint32_t offset_alignment = 4096;
    uint64_t users = 0;
    std::atomic<bool> cached = false;  // whether the page cache had the last range that was read
};

// Opens a file, or shares it if it is open already. A process can have millions of sources, but only thousands of file
// descriptors. The device and the inode identify a file.
Status open_file(int descriptor, OpenFile** out_file);
void close_file(OpenFile* file);

// For messages: the path of the file, or "file descriptor <n>" if the path cannot be found.
const char* file_name(int descriptor, char* buffer, size_t capacity);

}  // namespace stagehand::transfer
