// Fuzzes the reader of shard indexes. The input is an index; no shard that it lists may be outside its folder.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>

#include "check_model.h"
#include "model/byte_source.h"
#include "model/safetensors_index.h"

namespace {

using namespace stagehand::cli::model;

void check_index(const ShardIndex& index) {
    std::set<std::string_view> tensors;
    for (const ShardIndex::Entry& entry : index.entries) {
        fuzz::require(tensors.insert(entry.tensor).second && entry.shard < index.shards.size());
    }
    fuzz::require(!index.entries.empty() &&
                  std::set(index.shards.begin(), index.shards.end()).size() == index.shards.size());
    for (const std::string& shard : index.shards) {
        const std::filesystem::path path = shard;
        const std::filesystem::path normal = path.lexically_normal();
        fuzz::require(!shard.empty() && path.is_relative() && normal == path && *normal.begin() != "..");
        fuzz::require(shard.find('\0') == std::string::npos);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    MemorySource source("input", {reinterpret_cast<const char*>(data), size});
    try {
        check_index(read_shard_index(source, {}));
    } catch (const ModelError& error) {
        fuzz::require(!error.field().empty() && !error.message().empty());
    }
    return 0;
}
