// StagingFile: a file without a name that keeps contents while host memory is short. StagingRange: its part for one
// allocation. StagingFolder: the file that the allocations of one pause share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace stagehand::transfer {

// The file is gone when the process ends, however it ends. A file system without unnamed files gives it a name for a
// moment, or until it is closed: a name that a killed process has left is removed when the next file is opened there.
class StagingFile {
public:
    StagingFile() = default;
    ~StagingFile();
    StagingFile(const StagingFile&) = delete;
    StagingFile& operator=(const StagingFile&) = delete;

    // Returns SH_ERROR_IO if the folder cannot be written to.
    static Status open(const std::string& folder, std::shared_ptr<StagingFile>* out);

    // Takes the room for these bytes at the end of the file. Returns SH_ERROR_IO if the file system has too little.
    Status take_room(uint64_t bytes, uint64_t* out_begin);
    // The file system may use the room again. One that cannot cut holes waits until the file is closed.
    void give_room_back(uint64_t begin, uint64_t bytes) noexcept;

    int descriptor() const { return descriptor_; }
    // The file system refuses direct reads and writes. Any thread may find that out.
    void give_up_direct() noexcept;
    Status failed(bool writing, int error) const;

private:
    Status open_in(const std::string& folder);
    Status open_named(const std::string& folder);

    int descriptor_ = -1;
    uint64_t end_ = 0;  // of the room that was taken last
    std::string folder_;
    std::string path_;  // not empty: the name could not be removed yet
};

// The file stays open as long as one of its ranges lives.
class StagingRange {
public:
    StagingRange(std::shared_ptr<StagingFile> file, uint64_t begin, uint64_t bytes)
        : file_(std::move(file)), begin_(begin), bytes_(bytes) {}
    ~StagingRange() { file_->give_room_back(begin_, bytes_); }
    StagingRange(const StagingRange&) = delete;
    StagingRange& operator=(const StagingRange&) = delete;

    uint64_t begin() const { return begin_; }  // in the file
    uint64_t bytes() const { return bytes_; }
    StagingFile& file() { return *file_; }

private:
    const std::shared_ptr<StagingFile> file_;
    const uint64_t begin_, bytes_;
};

// A process may have few descriptors and many allocations, so they do not have a file each.
class StagingFolder {
public:
    explicit StagingFolder(std::string path) : path_(std::move(path)) {}

    // The first call opens the file. The errors are those of the file.
    Status take(uint64_t bytes, std::unique_ptr<StagingRange>* out);

private:
    const std::string path_;
    std::shared_ptr<StagingFile> file_;
};

}  // namespace stagehand::transfer
