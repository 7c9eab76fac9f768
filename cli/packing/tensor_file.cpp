#include "packing/tensor_file.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <sys/stat.h>

#include <fmt/format.h>

#include "model/error.h"
#include "model/packed_description.h"
#include "model/read_model.h"
#include "model/safetensors_header.h"

namespace stagehand::cli {

namespace {

model::Model read_one_file(const std::string& path) {
    model::ReadOptions options;
    options.as_in_file = true;
    model::Model model = model::read_model(path, options);
    if (model.format != model::Format::safetensors) {
        throw model::ModelError(path, "format", "is GGUF, and only safetensors files are packed");
    }
    if (model.files.size() != 1) {
        throw model::ModelError(path, "files",
                                fmt::format("are {}: give one safetensors file at a time", model.files.size()));
    }
    // An empty tensor has the offset of the next one.
    std::stable_sort(model.tensors.begin(), model.tensors.end(), [](const model::Tensor& a, const model::Tensor& b) {
        return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
    });
    return model;
}

}  // namespace

TensorFile::TensorFile(const std::string& path) : model_(read_one_file(path)), source_(model_.files.front().path) {
    // The readers have checked the header. They keep a few facts of the metadata only.
    const model::ModelFile& file = model_.files.front();
    std::string header(file.data_offset - 8, '\0');
    source_.read(8, header);
    const auto only_metadata = [](int depth, Json::parse_event_t event, const Json& parsed) {
        return depth != 1 || event != Json::parse_event_t::key || parsed == "__metadata__";
    };
    const Json json = Json::parse(header, only_metadata, false);
    if (json.is_discarded() || !json.is_object()) {
        throw model::ModelError(path, "header", "has changed while it was read");
    }
    const auto metadata = json.find("__metadata__");
    if (metadata == json.end()) {
        return;
    }
    for (const auto& [key, value] : metadata->items()) {
        if (key != model::packed_key) {
            metadata_.get_ref<Json::object_t&>().emplace_back(key, value);
            continue;
        }
        is_packed_ = true;
        try {
            packed_ = model::parse_description(value.is_string() ? value.get<std::string>() : "");
        } catch (const std::invalid_argument& problem) {
            throw model::ModelError(path, fmt::format("metadata '{}'", model::packed_key), problem.what());
        }
    }
}

std::vector<char> TensorFile::read(const model::Tensor& tensor) {
    std::vector<char> bytes(tensor.bytes);
    source_.read(tensor.offset, bytes);
    return bytes;
}

bool TensorFile::is_at(const std::string& path) const {
    struct stat found = {};
    return stat(path.c_str(), &found) == 0 && found.st_dev == source_.device() && found.st_ino == source_.inode();
}

}  // namespace stagehand::cli
