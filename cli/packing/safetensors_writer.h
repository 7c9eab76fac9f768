// Writes a safetensors file whose tensors become known one by one.
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "json_output.h"

namespace stagehand::cli {

struct WrittenTensor {
    std::string name;
    std::string dtype;
    std::vector<std::uint64_t> shape;
    std::uint64_t bytes = 0;
};

// A file with a name of its own, next to the one that it is to replace. It is removed if it never does.
class UnfinishedFile {
public:
    // `path` is a regular file, or nothing yet. A link leads to the file that is replaced. Throws CommandError.
    explicit UnfinishedFile(const std::string& path);
    ~UnfinishedFile();
    UnfinishedFile(const UnfinishedFile&) = delete;
    UnfinishedFile& operator=(const UnfinishedFile&) = delete;

    const std::string& name() const { return name_; }
    void write(std::string_view bytes);
    void rewind();
    // Its bytes are on the disk.
    void close();
    // Takes the place of the other file, and its permissions.
    void publish();

private:
    [[noreturn]] void fail(int error) const;

    std::string path_, name_;
    mode_t mode_ = 0;
    std::FILE* file_ = nullptr;
    bool published_ = false;
};

class SafetensorsWriter {
public:
    // `header_bytes`: the most that the header takes. It is written last. Data begins behind it, at a multiple of 64.
    SafetensorsWriter(const std::string& path, std::uint64_t header_bytes);

    void append(WrittenTensor tensor, std::span<const char> bytes);
    // Writes the header. The file can be read then, by the name that it has until it is published.
    void finish(const Json& metadata);
    const std::string& unfinished() const { return file_.name(); }
    // Gives the file its name, and replaces an older one.
    void publish() { file_.publish(); }

    // The text of a header. Offsets follow from the order and the bytes of the tensors.
    static std::string header(const Json& metadata, const std::vector<WrittenTensor>& tensors);

private:
    std::uint64_t header_bytes_;
    UnfinishedFile file_;
    std::vector<WrittenTensor> tensors_;
};

}  // namespace stagehand::cli
