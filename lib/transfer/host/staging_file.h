// StagingFile: a file without a name that keeps contents while host memory is short.
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

    // Takes the room for all bytes. Returns SH_ERROR_IO if the file system has too little, or if the folder cannot be
    // written to.
    static Status open(const std::string& folder, uint64_t bytes, std::unique_ptr<StagingFile>* out);

    uint64_t bytes() const { return bytes_; }
    int descriptor() const { return descriptor_; }
    // The file system refuses direct reads and writes. Any thread may find that out.
    void give_up_direct() noexcept;
    Status failed(bool writing, int error) const;

private:
    Status open_in(const std::string& folder);
    Status open_named(const std::string& folder);
    Status take_room(uint64_t bytes);

    int descriptor_ = -1;
    uint64_t bytes_ = 0;
    std::string folder_;
    std::string path_;  // not empty: the name could not be removed yet
};

}  // namespace stagehand::transfer
