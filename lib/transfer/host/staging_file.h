// StagingFile: a file without a name that keeps contents while host memory is short. StagingRange: its part for one
// allocation. StagingFiles: finds the file for a further allocation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "platform/descriptor.h"

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

    // Takes room for these bytes, which begins at a multiple of kAlignment. Returns SH_ERROR_IO if the file system has
    // too little, or if the file would be too large.
    Status take_room(uint64_t bytes, uint64_t* out_begin);
    // The room serves further bytes. The file system may use it for other files until then, unless it cannot cut holes.
    void give_room_back(uint64_t begin, uint64_t bytes) noexcept;
    static constexpr uint64_t kAlignment = 64 << 10;  // at least the block of usual file systems

    const std::string& folder() const { return folder_; }
    int descriptor() const { return descriptor_.own_number(); }
    // The file system refuses direct reads and writes. Any thread may find that out.
    void give_up_direct() noexcept;
    Status failed(bool writing, int error) const;

private:
    Status open_in(const std::string& folder);
    Status open_named(const std::string& folder);
    int allocate(uint64_t begin, uint64_t bytes);

    platform::Descriptor descriptor_;
    uint64_t end_ = 0;                   // of all room that was ever taken
    std::map<uint64_t, uint64_t> free_;  // parts before it that nobody uses: begin and bytes
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
class StagingFiles {
public:
    // Takes room in the file that serves the folder, or in a new one. The errors are those of StagingFile.
    Status take(const std::string& folder, uint64_t bytes, std::unique_ptr<StagingRange>* out);

private:
    std::weak_ptr<StagingFile> file_;
};

}  // namespace stagehand::transfer
