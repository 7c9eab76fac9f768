// OpenFile: a file that sources read, opened once for the page cache and once past it.
#pragma once

#include <atomic>
#include <cstdint>

#include <sys/types.h>

#include "base/status.h"

namespace stagehand::transfer {

struct OpenFile {
    OpenFile() = default;
    ~OpenFile();
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;

    dev_t device = 0;
    ino_t inode = 0;
    int file = -1;
    int direct_file = -1;              // -1: the file system refuses direct reads
    uint32_t memory_alignment = 4096;  // of direct reads
    uint32_t offset_alignment = 4096;
    uint64_t users = 0;
    std::atomic<bool> cached = false;  // the last range that was asked for was in the page cache
};

// Sources count by the million and descriptors by the thousand: files are told apart by device and inode and
// shared.
Status open_file(int descriptor, OpenFile** out_file);
void close_file(OpenFile* file);

// For messages: the file's path, or "file descriptor <n>" when that cannot be found.
const char* file_name(int descriptor, char* buffer, size_t capacity);

}  // namespace stagehand::transfer
