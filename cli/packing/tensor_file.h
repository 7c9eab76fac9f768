// One safetensors file as `pack` and `unpack` read it: its tensors in the order of their bytes, and its whole metadata.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "json_output.h"
#include "model/byte_source.h"
#include "model/model.h"
#include "model/packed_description.h"

namespace stagehand::cli {

class TensorFile {
public:
    // Throws ModelError, also if the model has more than one file or is not in safetensors.
    explicit TensorFile(const std::string& path);

    const std::string& path() const { return source_.name(); }
    const std::vector<model::Tensor>& tensors() const { return model_.tensors; }
    std::uint64_t bytes() const { return source_.size(); }
    std::uint64_t total_bytes() const { return model_.total_bytes; }
    // "__metadata__", without what `pack` has added.
    const Json& metadata() const { return metadata_; }
    // By name. Empty if the file is not packed.
    const model::PackedTensors& packed() const { return packed_; }
    bool is_packed() const { return is_packed_; }

    std::vector<char> read(const model::Tensor& tensor);
    // Whether this is the file at `path`, by whatever name.
    bool is_at(const std::string& path) const;

private:
    model::Model model_;
    model::FileSource source_;
    Json metadata_ = Json::object();
    model::PackedTensors packed_;
    bool is_packed_ = false;
};

}  // namespace stagehand::cli
