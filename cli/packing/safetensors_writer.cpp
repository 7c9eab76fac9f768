#include "packing/safetensors_writer.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "exit_code.h"
#include "model/text.h"

namespace stagehand::cli {

SafetensorsWriter::SafetensorsWriter(std::string path, std::uint64_t header_bytes)
    : path_(std::move(path)), unfinished_(fmt::format("{}.{}.part", path_, getpid())), header_bytes_(header_bytes) {
    file_ = std::fopen(unfinished_.c_str(), "wxe");
    if (file_ == nullptr) {
        fail(errno);
    }
    write(std::string(8 + header_bytes_, ' '));
}

SafetensorsWriter::~SafetensorsWriter() {
    if (file_ != nullptr) {
        (void)std::fclose(file_);
        (void)std::remove(unfinished_.c_str());
    }
}

void SafetensorsWriter::fail(int error) const {
    throw CommandError(ExitCode::output, fmt::format("{}: {}", model::printable(path_), std::strerror(error)));
}

void SafetensorsWriter::write(std::string_view bytes) {
    if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) {
        fail(errno);
    }
}

void SafetensorsWriter::append(WrittenTensor tensor, std::span<const char> bytes) {
    tensor.bytes = bytes.size();
    tensors_.push_back(std::move(tensor));
    write({bytes.data(), bytes.size()});
}

std::string SafetensorsWriter::header(const Json& metadata, const std::vector<WrittenTensor>& tensors) {
    Json json = Json::object();
    if (!metadata.empty()) {
        json["__metadata__"] = metadata;
    }
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

void SafetensorsWriter::complete(const Json& metadata) {
    std::string text = header(metadata, tensors_);
    if (text.size() > header_bytes_) {
        throw CommandError(ExitCode::output, fmt::format("{}: the header takes {} bytes, and has room for {}",
                                                         model::printable(path_), text.size(), header_bytes_));
    }
    text.resize(header_bytes_, ' ');  // the format allows spaces at the end
    std::string length;
    for (int i = 0; i < 8; ++i) {
        length += static_cast<char>(header_bytes_ >> (8 * i) & 0xff);
    }
    if (std::fseek(file_, 0, SEEK_SET) != 0) {
        fail(errno);
    }
    write(length);
    write(text);
    // The bytes are on the disk before the name is.
    if (std::fflush(file_) != 0 || fsync(fileno(file_)) != 0) {
        fail(errno);
    }
    const bool closed = std::fclose(std::exchange(file_, nullptr)) == 0;
    if (!closed || std::rename(unfinished_.c_str(), path_.c_str()) != 0) {
        const int error = errno;
        (void)std::remove(unfinished_.c_str());
        fail(error);
    }
}

}  // namespace stagehand::cli
