// The files of a model, open for reading while their weights are streamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/byte_source.h"
#include "model/model.h"

namespace stagehand::cli {

// What a command reads of a model: the file or folder that the user named, and the files that hold its tensors.
std::vector<std::string> inputs_of(const std::string& named, const model::Model& model);

class ModelFiles {
public:
    // Throws ModelError if a file cannot be opened, or is not as it was when its header was read. `model` must outlive
    // this object.
    explicit ModelFiles(const model::Model& model);

    int descriptor(std::uint32_t file) const { return files_[file]->descriptor(); }
    const std::string& path(std::uint32_t file) const { return model_.files[file].path; }

    // Fills `to`. Throws ModelError if the bytes are no longer in the file or cannot be read.
    void read(std::uint32_t file, std::uint64_t offset, std::span<std::byte> to) const;

    // Throws ModelError if a file has become shorter. The error names the file and the first tensor that is cut off.
    void check_sizes() const;

    // Whether a file has been changed since its header was read.
    bool changed() const;

private:
    model::FileStamp stamp(std::uint32_t file) const;
    void check_size(std::uint32_t file, std::uint64_t bytes) const;

    const model::Model& model_;
    std::vector<std::unique_ptr<model::FileSource>> files_;
};

}  // namespace stagehand::cli
