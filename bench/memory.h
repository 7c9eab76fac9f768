// Memory and files that blocks are streamed from.
#pragma once

#include <cstdint>
#include <string>

namespace stagehand::cli::bench {

// Memory from the system that is neither pinned nor touched yet. The system chooses the size of its pages.
class PlainMemory {
public:
    explicit PlainMemory(std::uint64_t bytes);
    // A mapping of an open file.
    PlainMemory(int file, std::uint64_t bytes);
    ~PlainMemory();
    PlainMemory(const PlainMemory&) = delete;
    PlainMemory& operator=(const PlainMemory&) = delete;

    char* data() const { return memory_; }
    std::uint64_t bytes() const { return bytes_; }

private:
    char* memory_;
    std::uint64_t bytes_;
};

// A file without a name, so that nothing remains of it however the process ends.
class ScratchFile {
public:
    // Writes the whole file and syncs it to the disk, so that its pages are in the cache and are not written later. If
    // `folder` is empty, the folder is $TMPDIR, otherwise /tmp. Throws CommandError.
    ScratchFile(const std::string& folder, std::uint64_t bytes);
    ~ScratchFile();
    ScratchFile(const ScratchFile&) = delete;
    ScratchFile& operator=(const ScratchFile&) = delete;

    int descriptor() const { return descriptor_; }
    std::uint64_t bytes() const { return bytes_; }

private:
    void write_all(const std::string& folder);

    int descriptor_ = -1;
    std::uint64_t bytes_;
};

}  // namespace stagehand::cli::bench
