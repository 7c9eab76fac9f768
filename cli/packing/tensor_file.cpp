#include "packing/tensor_file.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <sys/stat.h>

#include <fmt/format.h>

#include "codec/frame.h"
#include "model/element_format.h"
#include "model/error.h"
#include "model/gguf.h"
#include "model/packed_description.h"
#include "model/safetensors.h"
#include "model/text.h"
#include "packing/codec_error.h"

namespace stagehand::cli {

namespace {

model::Model read_one_file(model::FileSource& source) {
    if (model::is_gguf(source))
        throw model::ModelError(source.name(), "format", "is GGUF, and only safetensors files are packed");
    model::Model model;
    model::read_safetensors(source, {}, model);
    // An empty tensor has the offset of the next one.
    std::stable_sort(model.tensors.begin(), model.tensors.end(), [](const model::Tensor& a, const model::Tensor& b) {
        return std::pair(a.offset, a.file_bytes()) < std::pair(b.offset, b.file_bytes());
    });
    return model;
}

}  // namespace

TensorFile::TensorFile(const std::string& path) : source_(path), model_(read_one_file(source_)) {
    for (const auto& [key, value] : model_.files.front().metadata) {
        if (key != model::packed_key) {
            metadata_.get_ref<Json::object_t&>().emplace_back(key, value);
            continue;
        }
        is_packed_ = true;
    }
}

std::uint64_t TensorFile::stored_bytes() const {
    std::uint64_t bytes = 0;
    for (const model::Tensor& tensor : tensors()) bytes += tensor.file_bytes();
    return bytes;
}

std::size_t TensorFile::packed_tensors() const {
    return static_cast<std::size_t>(std::count_if(
        tensors().begin(), tensors().end(), [](const model::Tensor& tensor) { return tensor.packed_bytes != 0; }));
}

std::vector<char> TensorFile::read(const model::Tensor& tensor) {
    std::vector<char> bytes(tensor.file_bytes());
    source_.read(tensor.offset, bytes);
    if (tensor.packed_bytes == 0) return bytes;
    codec::Frame frame;
    check_codec(codec::Frame::open({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, &frame), path(),
                tensor.name);
    if (frame.format() != model::format_of_dtype(tensor.dtype) || frame.contents_bytes() != tensor.bytes) {
        throw model::ModelError(path(), fmt::format("tensor {}", model::in_quotes(tensor.name)),
                                "is not what the metadata says");
    }
    std::vector<char> contents(tensor.bytes);
    check_codec(frame.unpack(0, contents.size(), contents.data()), path(), tensor.name);
    return contents;
}

bool TensorFile::is_at(const std::string& path) const {
    struct stat found = {};
    return stat(path.c_str(), &found) == 0 && found.st_dev == source_.stamp().device &&
           found.st_ino == source_.stamp().inode;
}

}  // namespace stagehand::cli
