#include "model_folder.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "error.h"
#include "gguf.h"
#include "text.h"

namespace stagehand::cli::model {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view index_part = ".safetensors.index.";

}  // namespace

std::string ModelFolder::inside(const std::string& name) const { return (fs::path(path) / name).string(); }

bool ModelFolder::holds(std::string_view name) const {
    return std::find(safetensors.begin(), safetensors.end(), name) != safetensors.end();
}

ModelFolder list_model_folder(const std::string& path) {
    ModelFolder folder{path, {}, {}, {}, {}};
    std::error_code error;
    fs::directory_iterator entry(path, error);
    while (!error && entry != fs::directory_iterator()) {
        const std::string name = entry->path().filename().string();
        if (name.ends_with(".safetensors.index.json"))
            folder.indexes.push_back(name);
        else if (name.ends_with(".json") && name.find(index_part) != std::string::npos)
            folder.variant_indexes.push_back(name);
        else if (name.ends_with(".safetensors"))
            folder.safetensors.push_back(name);
        else if (name.ends_with(".gguf"))
            folder.gguf.push_back(name);
        entry.increment(error);
    }
    if (error) throw ModelError(path, "folder", "cannot be read: " + error.message(), error.value());
    for (auto* names : {&folder.indexes, &folder.variant_indexes, &folder.safetensors, &folder.gguf})
        std::sort(names->begin(), names->end());
    folder.gguf.erase(std::unique(folder.gguf.begin(), folder.gguf.end(), same_split), folder.gguf.end());
    return folder;
}

void refuse_choice(const std::string& folder, const std::vector<std::string>& candidates, std::string_view hint) {
    constexpr std::size_t shown = 4;
    std::string names;
    for (std::size_t i = 0; i < std::min(candidates.size(), shown); ++i)
        names += (i == 0 ? "" : ", ") + in_quotes(candidates[i]);
    if (candidates.size() > shown) names += " and " + std::to_string(candidates.size() - shown) + " more";
    throw ModelError(folder, "folder", "holds several models (" + names + "): name one of them" + std::string(hint));
}

}  // namespace stagehand::cli::model
