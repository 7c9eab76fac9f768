#include "packing/safetensors_writer.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "exit_code.h"
#include "model/text.h"

namespace stagehand::cli {

namespace {

mode_t mode_of_new_files() {
    const mode_t mask = umask(0);
    umask(mask);
    return 0666 & ~mask;
}

// Of a header, so that the data behind it and behind its length begins at a multiple of 64.
std::uint64_t padded(std::uint64_t header_bytes) {
    constexpr std::uint64_t alignment = 64;
    return (header_bytes + 8 + alignment - 1) / alignment * alignment - 8;
}

}  // namespace

UnfinishedFile::UnfinishedFile(const std::string& path) : path_(path) {
    struct stat found = {};
    if (stat(path.c_str(), &found) == 0) {
        if (!S_ISREG(found.st_mode))
            throw CommandError(ExitCode::output, fmt::format("{} is not a regular file", model::printable(path)));
        mode_ = found.st_mode & 07777;
        std::error_code error;
        path_ = std::filesystem::canonical(path, error).string();
        if (error) fail(error.value());
    } else {
        mode_ = mode_of_new_files();
    }
    constexpr std::string_view suffix = ".part";
    name_ = path_ + ".XXXXXX" + std::string(suffix);
    const int descriptor = mkostemps(name_.data(), static_cast<int>(suffix.size()), O_CLOEXEC);
    if (descriptor == -1) fail(errno);
    file_ = fdopen(descriptor, "w");
    if (file_ == nullptr) {
        const int error = errno;
        ::close(descriptor);
        (void)std::remove(name_.c_str());
        fail(error);
    }
}

UnfinishedFile::~UnfinishedFile() {
    if (file_ != nullptr) (void)std::fclose(file_);
    if (!published_) (void)std::remove(name_.c_str());
}

void UnfinishedFile::fail(int error) const {
    throw CommandError(ExitCode::output, fmt::format("{}: {}", model::printable(path_), std::strerror(error)));
}

void UnfinishedFile::write(std::string_view bytes) {
    // An empty tensor may have no address, which fwrite() does not allow.
    if (!bytes.empty() && std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) fail(errno);
}

void UnfinishedFile::rewind() {
    if (std::fseek(file_, 0, SEEK_SET) != 0) fail(errno);
}

void UnfinishedFile::close() {
    if (std::fflush(file_) != 0 || fchmod(fileno(file_), mode_) != 0 || fsync(fileno(file_)) != 0) fail(errno);
    if (std::fclose(std::exchange(file_, nullptr)) != 0) fail(errno);
}

void UnfinishedFile::publish() {
    if (std::rename(name_.c_str(), path_.c_str()) != 0) fail(errno);
    published_ = true;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::uint64_t header_bytes)
    : header_bytes_(padded(header_bytes)), file_(path) {
    file_.write(std::string(8 + header_bytes_, ' '));
}

void SafetensorsWriter::append(WrittenTensor tensor, std::span<const char> bytes) {
    tensor.bytes = bytes.size();
    tensors_.push_back(std::move(tensor));
    file_.write({bytes.data(), bytes.size()});
}

std::string SafetensorsWriter::header(const Json& metadata, const std::vector<WrittenTensor>& tensors) {
    Json json = Json::object();
    if (!metadata.empty()) json["__metadata__"] = metadata;
    std::uint64_t at = 0;
    for (const WrittenTensor& tensor : tensors) {
        // Not by operator[], which looks through all names first.
        json.get_ref<Json::object_t&>().emplace_back(
            tensor.name,
            Json{{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {at, at + tensor.bytes}}});
        at += tensor.bytes;
    }
    return json.dump();
}

void SafetensorsWriter::finish(const Json& metadata) {
    std::string text = header(metadata, tensors_);
    if (text.size() > header_bytes_) {
        throw CommandError(ExitCode::output, fmt::format("{}: the header takes {} bytes, and has room for {}",
                                                         model::printable(file_.name()), text.size(), header_bytes_));
    }
    text.resize(header_bytes_, ' ');  // the format allows spaces at the end
    std::string length;
    for (int i = 0; i < 8; ++i) length += static_cast<char>(header_bytes_ >> (8 * i) & 0xff);
    file_.rewind();
    file_.write(length);
    file_.write(text);
    file_.close();
}

}  // namespace stagehand::cli
