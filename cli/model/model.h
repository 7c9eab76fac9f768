// The description of a model from its files: its tensors and the places of their bytes. Holds no weights.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arena.h"
#include "byte_source.h"
#include "text.h"

namespace stagehand::cli::model {

enum class Format { safetensors, gguf };

// "safetensors" or "GGUF".
inline std::string_view to_string(Format format) { return format == Format::gguf ? "GGUF" : "safetensors"; }

struct ModelFile {
    std::string path;               // as it can be opened: relative to the working directory, or absolute
    std::uint64_t bytes = 0;        // size when the header was read
    FileStamp stamp;                // when the header was read
    std::uint64_t data_offset = 0;  // where tensor data begins
    // Of safetensors: what the file says of itself, all of it, as it stands there and in that order.
    std::vector<std::pair<std::string, std::string>> metadata = {};
};

struct Tensor {
    std::string_view name;                 // UTF-8; owned by Model::arena
    std::string_view dtype;                // the format's own word, such as "BF16" or "Q4_K"; static
    std::span<const std::uint64_t> shape;  // outermost dimension first in both formats; owned by Model::arena
    std::uint32_t file = 0;                // index into Model::files
    std::uint64_t offset = 0;              // bytes from the beginning of that file
    std::uint64_t bytes = 0;               // may be 0
    std::uint64_t packed_bytes = 0;  // in the file, if `stagehand pack` has packed the tensor; 0: it is not packed

    std::uint64_t file_bytes() const { return packed_bytes != 0 ? packed_bytes : bytes; }
};

// Movable, but not copyable, because tensors point into the arena. A model from the readers keeps these promises: names
// are unique; every tensor is inside the data of its file; no two tensors overlap; `bytes` follows from dtype and
// shape; total_bytes is the sum of `bytes`, and at most max_total_bytes.
struct Model {
    static constexpr std::uint64_t max_total_bytes = std::uint64_t{1} << 62;

    Format format = Format::safetensors;
    std::vector<ModelFile> files;
    std::vector<Tensor> tensors;  // file by file, in the order in which each header names them
    std::uint64_t total_bytes = 0;
    std::string index;  // path of the shard index; empty if the model has none
    // A few facts for people, such as "general.architecture"; at most metadata_entries of them, printable.
    std::vector<std::pair<std::string, std::string>> metadata;
    Arena arena;

    static constexpr std::size_t metadata_entries = 32;

    Model() = default;
    Model(Model&&) = default;
    Model& operator=(Model&&) = default;
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    // Adds a fact if there are fewer than metadata_entries.
    void note(std::string_view key, std::string_view value) {
        if (metadata.size() < metadata_entries) metadata.emplace_back(printable(key), printable(value, 256));
    }
};

struct ReadOptions {
    // The most bytes of one file's header, or of a shard index, that are read. 1 GiB: some 8 million tensors.
    std::uint64_t max_header_bytes = std::uint64_t{1} << 30;
};

// A tensor's name longer than this is bad input (GGUF's own limit for keys).
inline constexpr std::size_t max_name_bytes = 65535;

}  // namespace stagehand::cli::model
