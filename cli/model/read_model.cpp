// Finds the files of a model and reads them.
#include "read_model.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "byte_source.h"
#include "checks.h"
#include "error.h"
#include "gguf.h"
#include "gguf_split.h"
#include "safetensors.h"
#include "safetensors_index.h"
#include "text.h"

namespace stagehand::cli::model {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view index_suffix = ".safetensors.index.json";

// The model files of a folder, by name.
struct Folder {
    std::string path;
    std::vector<std::string> indexes;
    std::vector<std::string> safetensors;
    std::vector<std::string> gguf;  // of the parts of one split, only the first
};

std::string inside(const std::string& folder, const std::string& name) { return (fs::path(folder) / name).string(); }

std::string folder_of(const std::string& path) { return fs::path(path).parent_path().string(); }

// Whether it is named like a shard of several: NAME-00001-of-00003.safetensors.
bool is_one_of_several(std::string_view name) {
    constexpr std::string_view suffix = ".safetensors", separator = "-of-";
    if (!name.ends_with(suffix)) {
        return false;
    }
    name.remove_suffix(suffix.size());
    const std::size_t at = name.rfind(separator);
    if (at == std::string_view::npos) {
        return false;
    }
    const std::string_view count = name.substr(at + separator.size());
    return !count.empty() && count.find_first_not_of("0123456789") == std::string_view::npos &&
           count.find_first_not_of('0') != std::string_view::npos && count.substr(count.find_first_not_of('0')) != "1";
}

Folder list_folder(const std::string& path) {
    Folder folder{path, {}, {}, {}};
    std::error_code error;
    fs::directory_iterator entry(path, error);
    while (!error && entry != fs::directory_iterator()) {
        const std::string name = entry->path().filename().string();
        if (name.ends_with(index_suffix)) {
            folder.indexes.push_back(name);
        } else if (name.ends_with(".safetensors")) {
            folder.safetensors.push_back(name);
        } else if (name.ends_with(".gguf")) {
            folder.gguf.push_back(name);
        }
        entry.increment(error);
    }
    if (error) {
        throw ModelError(path, "folder", "cannot be read: " + error.message());
    }
    std::sort(folder.indexes.begin(), folder.indexes.end());
    std::sort(folder.safetensors.begin(), folder.safetensors.end());
    std::sort(folder.gguf.begin(), folder.gguf.end());
    folder.gguf.erase(std::unique(folder.gguf.begin(), folder.gguf.end(), same_split), folder.gguf.end());
    return folder;
}

[[noreturn]] void refuse_choice(const std::string& folder, const std::vector<std::string>& candidates,
                                std::string_view hint) {
    constexpr std::size_t shown = 4;
    std::string names;
    for (std::size_t i = 0; i < std::min(candidates.size(), shown); ++i) {
        names += (i == 0 ? "" : ", ") + in_quotes(candidates[i]);
    }
    if (candidates.size() > shown) {
        names += " and " + std::to_string(candidates.size() - shown) + " more";
    }
    throw ModelError(folder, "folder", "holds several models (" + names + "): name one of them" + std::string(hint));
}

// Reads the model of a shard index. `folder` is given if the index was found in that folder: other models in the folder
// then make the choice ambiguous.
Model read_sharded(const std::string& path, const ReadOptions& options, const Folder* folder) {
    FileSource source(path);
    const ShardIndex index = read_shard_index(source, options);
    if (folder != nullptr) {
        std::vector<std::string> candidates{folder->indexes.front()};
        std::set_difference(folder->safetensors.begin(), folder->safetensors.end(), index.shards.begin(),
                            index.shards.end(), std::back_inserter(candidates));
        candidates.insert(candidates.end(), folder->gguf.begin(), folder->gguf.end());
        if (candidates.size() > 1) {
            refuse_choice(folder->path, candidates, "");
        }
    }
    Model model;
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::string> seen;
    for (const std::string& shard : index.shards) {
        FileSource file(inside(folder_of(path), shard));
        const auto [other, is_new] = seen.emplace(std::pair(file.device(), file.inode()), shard);
        if (!is_new) {
            throw ModelError(path, "weight_map",
                             "names one file twice, as " + in_quotes(other->second) + " and as " + in_quotes(shard));
        }
        read_safetensors(file, options, model);
    }
    check_names(model);
    check_shard_index(index, model);
    model.index = path;
    return model;
}

Model read_gguf_parts(const std::string& path, FileSource& source, const ReadOptions& options) {
    Model model;
    const GgufSplit split = read_gguf(source, options, model);
    if (split.count <= 1) {
        return model;
    }
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
    if (path.ends_with(".json")) {
        return read_sharded(path, options, nullptr);
    }
    FileSource source(path);
    if (is_gguf(source)) {
        return read_gguf_parts(path, source, options);
    }
    Model model;
    read_safetensors(source, options, model);
    return model;
}

Model read_folder(const std::string& path, const ReadOptions& options) {
    const Folder folder = list_folder(path);
    if (folder.indexes.size() == 1) {
        return read_sharded(inside(path, folder.indexes.front()), options, &folder);
    }
    std::vector<std::string> candidates = folder.indexes;
    candidates.insert(candidates.end(), folder.safetensors.begin(), folder.safetensors.end());
    candidates.insert(candidates.end(), folder.gguf.begin(), folder.gguf.end());
    if (candidates.empty()) {
        throw ModelError(path, "folder", "holds no model: no *.safetensors, *.safetensors.index.json or *.gguf file");
    }
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
    return read_file(inside(path, candidates.front()), options);
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
