// Finds the files of a model and reads them.
#include "read_model.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "byte_source.h"
#include "checks.h"
#include "error.h"
#include "gguf.h"
#include "model_folder.h"
#include "safetensors.h"
#include "safetensors_index.h"
#include "text.h"

namespace stagehand::cli::model {

namespace {

namespace fs = std::filesystem;

// Whether it is named like a shard of several: NAME-00001-of-00003.safetensors.
bool is_one_of_several(std::string_view name) {
    constexpr std::string_view suffix = ".safetensors", separator = "-of-";
    if (!name.ends_with(suffix)) return false;
    name.remove_suffix(suffix.size());
    const std::size_t at = name.rfind(separator);
    if (at == std::string_view::npos) return false;
    const std::string_view count = name.substr(at + separator.size());
    return !count.empty() && count.find_first_not_of("0123456789") == std::string_view::npos &&
           count.find_first_not_of('0') != std::string_view::npos && count.substr(count.find_first_not_of('0')) != "1";
}

// Reads the model of a shard index. `folder` is given if the index was found in that folder: other models in the folder
// then make the choice ambiguous.
Model read_sharded(const std::string& path, const ReadOptions& options, const ModelFolder* folder) {
    const ShardIndex index = read_shard_index(path, options);
    if (folder != nullptr) {
        std::vector<std::string> candidates{fs::path(path).filename().string()};
        std::set_difference(folder->safetensors.begin(), folder->safetensors.end(), index.shards.begin(),
                            index.shards.end(), std::back_inserter(candidates));
        candidates.insert(candidates.end(), folder->gguf.begin(), folder->gguf.end());
        if (candidates.size() > 1) refuse_choice(folder->path, candidates);
    }
    Model model;
    read_shards(index, options, model);
    model.index = path;
    return model;
}

Model read_gguf_parts(const std::string& path, FileSource& source, const ReadOptions& options) {
    Model model;
    const GgufSplit split = read_gguf(source, options, model);
    if (split.count <= 1) return model;
    const std::vector<std::string> parts = split_parts(path, split);
    model = Model();
    for (std::size_t i = 0; i < parts.size(); ++i) {
        FileSource part(parts[i]);
        const GgufSplit found = read_gguf(part, options, model);
        if (found.number != i || found.count != split.count) {
            throw ModelError(parts[i], "metadata 'split.no'",
                             "says part " + std::to_string(found.number) + " (from 0) of " +
                                 std::to_string(found.count) + ", but the name says part " + std::to_string(i) +
                                 " of " + std::to_string(split.count));
        }
    }
    check_names(model);
    return model;
}

Model read_file(const std::string& path, const ReadOptions& options) {
    if (path.ends_with(".json")) return read_sharded(path, options, nullptr);
    FileSource source(path);
    if (is_gguf(source)) return read_gguf_parts(path, source, options);
    Model model;
    read_safetensors(source, options, model);
    return model;
}

Model read_folder(const std::string& path, const ReadOptions& options) {
    const ModelFolder folder = list_model_folder(path);
    std::vector<std::string> candidates = folder.indexes.empty() ? folder.variant_indexes : folder.indexes;
    if (candidates.size() == 1) return read_sharded(folder.inside(candidates.front()), options, &folder);
    candidates.insert(candidates.end(), folder.safetensors.begin(), folder.safetensors.end());
    candidates.insert(candidates.end(), folder.gguf.begin(), folder.gguf.end());
    if (candidates.empty())
        throw ModelError(path, "folder", "holds no model: no *.safetensors, *.safetensors.index.json or *.gguf file");
    if (candidates.size() > 1) {
        const bool only_shards = folder.safetensors.size() == candidates.size();
        refuse_choice(path, candidates,
                      only_shards ? ", or add the *.safetensors.index.json if they are shards of one" : "");
    }
    if (is_one_of_several(candidates.front())) {
        throw ModelError(path, "folder",
                         "holds one shard of several (" + in_quotes(candidates.front()) +
                             "), and no *.safetensors.index.json: name the file to take it alone");
    }
    return read_file(folder.inside(candidates.front()), options);
}

}  // namespace

Model read_model(const std::string& path, const ReadOptions& options) {
    std::error_code error;
    Model model = fs::is_directory(path, error) ? read_folder(path, options) : read_file(path, options);
    if (model.total_bytes == 0) {
        throw ModelError(path, "tensors",
                         model.tensors.empty() ? "the model holds none" : "the model's tensors are all empty");
    }
    return model;
}

}  // namespace stagehand::cli::model
