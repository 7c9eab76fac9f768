#include "model_files.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "model/error.h"
#include "model/text.h"

namespace stagehand::cli {

std::vector<std::string> inputs_of(const std::string& named, const model::Model& model) {
    std::vector<std::string> inputs = {named};
    for (const model::ModelFile& file : model.files) inputs.push_back(file.path);
    return inputs;
}

ModelFiles::ModelFiles(const model::Model& model) : model_(model) {
    for (const model::ModelFile& file : model.files) {
        // O_NONBLOCK, so that the open does not hang if the name has become a fifo.
        const int descriptor = open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (descriptor < 0) {
            const int error = errno;
            close_all();
            throw model::ModelError(file.path, "file", std::strerror(error));
        }
        descriptors_.push_back(descriptor);
    }
    try {
        check_sizes();
        check_stamps();
    } catch (...) {
        close_all();
        throw;
    }
}

ModelFiles::~ModelFiles() { close_all(); }

void ModelFiles::close_all() const {
    for (const int descriptor : descriptors_) close(descriptor);
}

model::FileStamp ModelFiles::stamp(std::uint32_t file) const {
    return model::stamp_of(descriptors_[file], model_.files[file].path);
}

void ModelFiles::check_stamps() const {
    for (std::uint32_t i = 0; i < descriptors_.size(); ++i) {
        if (stamp(i) != model_.files[i].stamp) {
            throw model::ModelError(
                model_.files[i].path, "file",
                "was changed, or is another file, since its header was read: run the command again");
        }
    }
}

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
    std::size_t done = 0;
    while (done < to.size()) {
        const ssize_t got =
            pread(descriptors_[file], to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
        if (got > 0) {
            done += static_cast<std::size_t>(got);
        } else if (got == 0) {
            check_sizes();
            throw model::ModelError(model_.files[file].path, "data",
                                    fmt::format("the file ends before byte {}", offset + to.size()));
        } else if (errno != EINTR) {
            throw model::ModelError(model_.files[file].path, "data", std::strerror(errno));
        }
    }
}

void ModelFiles::check_sizes() const {
    for (std::uint32_t i = 0; i < descriptors_.size(); ++i) check_size(i, stamp(i).bytes);
}

bool ModelFiles::changed() const {
    for (std::uint32_t i = 0; i < descriptors_.size(); ++i)
        if (stamp(i) != model_.files[i].stamp) return true;
    return false;
}

}  // namespace stagehand::cli
