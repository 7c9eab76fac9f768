#include "model_files.h"

#include <fmt/format.h>

#include "model/error.h"
#include "model/text.h"

namespace stagehand::cli {

std::vector<std::string> inputs_of(const std::string& named, const model::Model& model) {
    std::vector<std::string> inputs = {named};
    for (const model::ModelFile& file : model.files) inputs.push_back(file.path);
    return inputs;
}

ModelFiles::ModelFiles(const model::Model& model) : model_(model) {
    for (const model::ModelFile& file : model.files) files_.push_back(std::make_unique<model::FileSource>(file.path));
    check_sizes();
    for (std::uint32_t i = 0; i < files_.size(); ++i)
        if (stamp(i) != model.files[i].stamp)
            throw model::ModelError(
                model.files[i].path, "file",
                "was changed, or is another file, since its header was read: run the command again");
}

model::FileStamp ModelFiles::stamp(std::uint32_t file) const { return model::stamp_of(descriptor(file), path(file)); }

void ModelFiles::check_size(std::uint32_t file, std::uint64_t bytes) const {
    const model::ModelFile& known = model_.files[file];
    if (bytes >= known.bytes) return;
    const model::Tensor* cut = nullptr;
    for (const model::Tensor& tensor : model_.tensors)
        if (tensor.file == file && tensor.offset + tensor.file_bytes() > bytes &&
            (cut == nullptr || tensor.offset < cut->offset))
            cut = &tensor;
    if (cut != nullptr) {
        throw model::ModelError(
            known.path, fmt::format("tensor {}: data", model::in_quotes(cut->name)),
            fmt::format("the file has shrunk from {} to {} bytes while it was read; the data of this "
                        "tensor begin at byte {} and have {} bytes",
                        known.bytes, bytes, cut->offset, cut->bytes));
    }
    throw model::ModelError(
        known.path, "size",
        fmt::format("the file has shrunk from {} to {} bytes while it was read", known.bytes, bytes));
}

void ModelFiles::read(std::uint32_t file, std::uint64_t offset, std::span<std::byte> to) const {
    try {
        files_[file]->read(offset, {reinterpret_cast<char*>(to.data()), to.size()});
    } catch (const model::ModelError&) {
        check_sizes();
        throw;
    }
}

void ModelFiles::check_sizes() const {
    for (std::uint32_t i = 0; i < files_.size(); ++i) check_size(i, stamp(i).bytes);
}

bool ModelFiles::changed() const {
    for (std::uint32_t i = 0; i < files_.size(); ++i)
        if (stamp(i) != model_.files[i].stamp) return true;
    return false;
}

}  // namespace stagehand::cli
