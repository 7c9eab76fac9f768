// Reads the length before the header, and checks the properties of all tensors together.
#include "safetensors.h"

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "checks.h"
#include "error.h"
#include "json_events.h"
#include "packed_description.h"
#include "safetensors_header.h"

namespace stagehand::cli::model {

namespace {

// Guesses the kind of a file that begins with these bytes and is not a safetensors file.
std::string_view foreign_kind(std::string_view lead) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kinds{{
        {"version https://git-lfs", "this is a Git LFS pointer, not the file itself: fetch it with 'git lfs pull'"},
        {"GGUF", "this is a GGUF file"},
        {"PK\x03\x04", "this is a zip archive, perhaps a PyTorch checkpoint: convert it to safetensors"},
        {"\x80\x02", "this is a Python pickle: convert it to safetensors"},
        {"\x89HDF", "this is an HDF5 file: convert it to safetensors"},
        {"<", "this is an HTML or XML page"},
        {"{", "this is JSON; a shard index has a name that ends in .index.json"},
    }};
    for (const auto& [magic, kind] : kinds)
        if (lead.substr(0, magic.size()) == magic) return kind;
    return "not a safetensors file, or truncated";
}

// Reads and checks the length at the beginning of a file.
std::uint64_t read_header_length(ByteSource& source, const ReadOptions& options) {
    constexpr std::string_view field = "header length";
    const std::uint64_t size = source.size();
    if (size == 0) throw ModelError(source.name(), "file", "is empty");
    std::array<char, 32> lead{};
    const std::size_t lead_bytes = size < lead.size() ? static_cast<std::size_t>(size) : lead.size();
    source.read(0, {lead.data(), lead_bytes});
    const std::string_view lead_text(lead.data(), lead_bytes);
    if (size < 8) {
        throw ModelError(
            source.name(), field,
            "takes 8 bytes, but the file has " + std::to_string(size) + ": " + std::string(foreign_kind(lead_text)));
    }
    std::uint64_t length = 0;
    for (std::size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(lead[i]);
    if (length == 0) throw ModelError(source.name(), field, "is zero");
    if (length > size - 8) {
        throw ModelError(source.name(), field,
                         "says " + std::to_string(length) + ", but only " + std::to_string(size - 8) +
                             " bytes follow: " + std::string(foreign_kind(lead_text)));
    }
    if (length > options.max_header_bytes) {
        throw ModelError(source.name(), field,
                         "says " + std::to_string(length) + ", more than the limit on header bytes, " +
                             std::to_string(options.max_header_bytes));
    }
    return length;
}

}  // namespace

void read_safetensors(ByteSource& source, const ReadOptions& options, Model& model) {
    const std::uint64_t length = read_header_length(source, options);
    const std::size_t first = model.tensors.size();
    const auto file = static_cast<std::uint32_t>(model.files.size());
    model.format = Format::safetensors;
    model.files.push_back({source.name(), source.size(), source.stamp(), 8 + length});

    SafetensorsHeader header(model, file);
    read_json(source, 8, length, "header", header);
    check_names(model, first);
    check_layout(model, first, false);
    std::uint64_t covered = 0;
    for (std::size_t i = first; i < model.tensors.size(); ++i) covered += model.tensors[i].bytes;
    const std::uint64_t data_bytes = source.size() - 8 - length;
    if (covered != data_bytes) {
        throw ModelError(source.name(), "data_offsets",
                         "end at " + std::to_string(covered) + ", but the file holds " + std::to_string(data_bytes) +
                             " bytes of data");
    }
    for (const auto& [key, value] : model.files.back().metadata)
        if (key == packed_key) apply_description(value, source, first, model);
    add_bytes(model, first);
}

}  // namespace stagehand::cli::model
