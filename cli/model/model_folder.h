// The model files of a folder, told apart by their names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace stagehand::cli::model {

struct ModelFolder {
    std::string path;
    std::vector<std::string> indexes;          // NAME.safetensors.index.json
    std::vector<std::string> variant_indexes;  // NAME.safetensors.index.VARIANT.json
    std::vector<std::string> safetensors;
    std::vector<std::string> gguf;  // of the parts of one split, only the first

    std::string inside(const std::string& name) const;
    bool holds(std::string_view name) const;  // as a safetensors file
};

// All names are in order. Throws ModelError if the folder cannot be read.
ModelFolder list_model_folder(const std::string& path);

// Throws the ModelError that names the models of a folder of which one has to be chosen.
[[noreturn]] void refuse_choice(const std::string& folder, const std::vector<std::string>& candidates,
                                std::string_view hint = {});

}  // namespace stagehand::cli::model
