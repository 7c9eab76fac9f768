// Writes a safetensors file whose tensors become known one by one.
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "json_output.h"

namespace stagehand::cli {

struct WrittenTensor {
    std::string name;
    std::string dtype;
    std::vector<std::uint64_t> shape;
    std::uint64_t bytes = 0;
};

// The file has another name until it is complete, and is removed if it never is. So the file at `path` is always whole.
// Throws CommandError.
class SafetensorsWriter {
public:
    // `header_bytes`: room for the header, which is written last. The file's data begins behind it.
    SafetensorsWriter(std::string path, std::uint64_t header_bytes);
    ~SafetensorsWriter();
    SafetensorsWriter(const SafetensorsWriter&) = delete;
    SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

    void append(WrittenTensor tensor, std::span<const char> bytes);
    // Writes the header and puts the file into its place.
    void complete(const Json& metadata);

    // The text of a header. Offsets follow from the order and the bytes of the tensors.
    static std::string header(const Json& metadata, const std::vector<WrittenTensor>& tensors);

private:
    void write(std::string_view bytes);
    [[noreturn]] void fail(int error) const;

    std::string path_, unfinished_;
    std::uint64_t header_bytes_;
    std::FILE* file_ = nullptr;
    std::vector<WrittenTensor> tensors_;
};

}  // namespace stagehand::cli
