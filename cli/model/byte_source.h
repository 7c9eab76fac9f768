// The bytes of a header: a file that is read with pread, or memory. Never a mapping, because access to a mapped file
// that has shrunk kills the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace stagehand::cli::model {

// Which file it is, and when it was last written to: two stamps are equal if it is one file that nobody has changed.
struct FileStamp {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    std::uint64_t bytes = 0;
    std::int64_t seconds = 0;  // of its last change, with the nanoseconds
    std::int64_t nanoseconds = 0;

    bool operator==(const FileStamp&) const = default;
};

// The stamp of an open file. Throws ModelError with the path if the system does not tell it.
FileStamp stamp_of(int descriptor, const std::string& path);

// A source of known size that can be read at any offset. Errors are ModelError and name the source.
class ByteSource {
public:
    ByteSource() = default;
    virtual ~ByteSource() = default;
    ByteSource(const ByteSource&) = delete;
    ByteSource& operator=(const ByteSource&) = delete;

    // The name of the source in messages: the path of a file.
    virtual const std::string& name() const = 0;
    virtual std::uint64_t size() const = 0;
    // Of a file, when it was opened. Memory has no other stamp than its size.
    virtual FileStamp stamp() const { return {.bytes = size()}; }

    // Fills `to` with the bytes at `offset`. The range must be inside size(). Throws if the bytes are no longer in the
    // file or cannot be read.
    virtual void read(std::uint64_t offset, std::span<char> to) = 0;
};

// A regular file, opened for reading. Links are followed. A directory, fifo, socket or device is an error and is never
// opened, so that the open does not hang. size() is the size at the open.
class FileSource final : public ByteSource {
public:
    explicit FileSource(const std::string& path);
    ~FileSource() override;

    const std::string& name() const override { return path_; }
    std::uint64_t size() const override { return stamp_.bytes; }
    FileStamp stamp() const override { return stamp_; }
    void read(std::uint64_t offset, std::span<char> to) override;
    int descriptor() const { return fd_; }

private:
    std::string path_;
    int fd_ = -1;
    FileStamp stamp_;
};

// Bytes in memory. The caller keeps them alive.
class MemorySource final : public ByteSource {
public:
    MemorySource(std::string name, std::string_view bytes) : name_(std::move(name)), bytes_(bytes) {}

    const std::string& name() const override { return name_; }
    std::uint64_t size() const override { return bytes_.size(); }
    void read(std::uint64_t offset, std::span<char> to) override;

private:
    std::string name_;
    std::string_view bytes_;
};

}  // namespace stagehand::cli::model
