// One safetensors file as `pack` and `unpack` read it: its tensors in the order of their bytes, as
// they are or were before they were packed, and its whole metadata.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "json_output.h"
#include "model/byte_source.h"
#include "model/model.h"

namespace stagehand::cli {

class TensorFile {
public:
    // Throws ModelError, also if the file is in GGUF.
    explicit TensorFile(const std::string& path);

    const std::string& path() const { return source_.name(); }
    const std::vector<model::Tensor>& tensors() const { return model_.tensors; }
    std::uint64_t bytes() const { return source_.size(); }
    // Of all tensors, as they are in the file.
    std::uint64_t stored_bytes() const;
    // "__metadata__", without what `pack` has added.
    const Json& metadata() const { return metadata_; }
    // Whether `pack` has written the file, in which any number of tensors is packed.
    bool is_packed() const { return is_packed_; }
    std::size_t packed_tensors() const;

    // The bytes of a tensor, unpacked if it is packed. Throws ModelError if it is not what the metadata says.
    std::vector<char> read(const model::Tensor& tensor);
    // Whether this is the file at `path`, by whatever name.
    bool is_at(const std::string& path) const;

private:
    model::FileSource source_;
    model::Model model_;
    Json metadata_ = Json::object();
    bool is_packed_ = false;
};

}  // namespace stagehand::cli
