#include "sharded.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <utility>

#include "byte_source.h"
#include "checks.h"
#include "error.h"
#include "safetensors.h"
#include "text.h"

namespace stagehand::cli::model {

ShardIndex read_shard_index(const std::string& path, const ReadOptions& options) {
    FileSource source(path);
    return read_shard_index(source, options);
}

void read_shards(const ShardIndex& index, const ReadOptions& options, Model& model) {
    const std::filesystem::path folder = std::filesystem::path(index.path).parent_path();
    const std::size_t first_file = model.files.size();
    const std::size_t first_tensor = model.tensors.size();
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::string> seen;
    for (const std::string& shard : index.shards) {
        FileSource file((folder / shard).string());
        const auto [other, is_new] = seen.emplace(std::pair(file.stamp().device, file.stamp().inode), shard);
        if (!is_new) {
            throw ModelError(index.path, "weight_map",
                             "names one file twice, as " + in_quotes(other->second) + " and as " + in_quotes(shard));
        }
        read_safetensors(file, options, model);
    }
    check_names(model, first_tensor);
    check_shard_index(index, model, first_file, first_tensor);
}

}  // namespace stagehand::cli::model
