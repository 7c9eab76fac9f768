// Chooses the files of a folder as the libraries that load models do.
#include "read_model.h"

#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "byte_source.h"
#include "checks.h"
#include "error.h"
#include "model_folder.h"
#include "safetensors.h"
#include "safetensors_index.h"

namespace stagehand::cli::model {

namespace {

// The names that transformers and diffusers give to a model in one file.
constexpr std::array<std::string_view, 2> whole_models{"model.safetensors", "diffusion_pytorch_model.safetensors"};

// The files of a folder that hold its model: an index, a file, or several files.
std::vector<std::string> files_of(const ModelFolder& folder) {
    std::vector<std::string> whole;
    for (const std::string_view name : whole_models)
        if (folder.holds(name)) whole.emplace_back(name);
    for (const auto* models : {&folder.indexes, &std::as_const(whole), &folder.variant_indexes}) {
        if (models->size() > 1) refuse_choice(folder.path, *models);
        if (!models->empty()) return *models;
    }
    if (folder.safetensors.empty())
        throw ModelError(folder.path, "folder", "holds no *.safetensors or *.safetensors.index.json file", ENOENT);
    return folder.safetensors;
}

void add_file(const std::string& path, const ReadOptions& options, Model& model) {
    if (path.ends_with(".json")) {
        read_shards(read_shard_index(path, options), options, model);
        return;
    }
    FileSource source(path);
    read_safetensors(source, options, model);
}

}  // namespace

Model read_weights(std::span<const std::string> paths, const ReadOptions& options) {
    Model model;
    for (const std::string& path : paths) {
        std::error_code error;
        if (!std::filesystem::is_directory(path, error)) {
            add_file(path, options, model);
            continue;
        }
        const ModelFolder folder = list_model_folder(path);
        for (const std::string& name : files_of(folder)) add_file(folder.inside(name), options, model);
    }
    check_names(model);
    return model;
}

}  // namespace stagehand::cli::model
