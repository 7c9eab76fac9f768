// Builders and helpers of the tests of model files.
#include "model_files.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "model/byte_source.h"
#include "model/gguf.h"
#include "model/safetensors.h"

namespace stagehand::cli::model::test {

namespace fs = std::filesystem;

namespace {

std::string counting_bytes(std::size_t bytes) {
    std::string data(bytes, '\0');
    for (std::size_t i = 0; i < bytes; ++i) {
        data[i] = static_cast<char>(i);
    }
    return data;
}

}  // namespace

std::string little(std::uint64_t value, std::size_t bytes) {
    std::string text;
    for (std::size_t i = 0; i < bytes; ++i) {
        text += static_cast<char>(value >> (8 * i) & 0xff);
    }
    return text;
}

std::string safetensors(std::string_view header, std::size_t data_bytes) {
    return little(header.size(), 8) + std::string(header) + counting_bytes(data_bytes);
}

std::string entry(std::string_view name, std::string_view dtype, std::string_view shape, std::uint64_t begin,
                  std::uint64_t end) {
    return "\"" + std::string(name) + R"(":{"dtype":")" + std::string(dtype) + R"(","shape":)" + std::string(shape) +
           R"(,"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

std::string Gguf::text_value(std::string_view value) { return little(value.size(), 8) + std::string(value); }

std::string packed_head(std::uint8_t format, std::uint64_t contents_bytes, std::uint64_t frame_bytes) {
    const std::string sizes = little(contents_bytes, 8) + little(frame_bytes, 8) + little(32 * 8192, 4) + little(1, 4);
    return "SHPK" + little(2, 2) + little(format, 1) + little(0, 1) + sizes + std::string(32, '\0');
}

Gguf& Gguf::raw(std::string_view key, std::uint32_t type, std::string_view value) {
    ++metadata_count_;
    metadata_ += text_value(key) + little(type, 4) + std::string(value);
    return *this;
}

Gguf& Gguf::integer(std::string_view key, std::uint32_t type, std::uint64_t value, std::size_t bytes) {
    return raw(key, type, little(value, bytes));
}

Gguf& Gguf::text(std::string_view key, std::string_view value) { return raw(key, string, text_value(value)); }

Gguf& Gguf::tensor(std::string_view name, std::initializer_list<std::uint64_t> dimensions, std::uint32_t type,
                   std::uint64_t offset) {
    std::string description = text_value(name) + little(dimensions.size(), 4);
    for (const std::uint64_t dimension : dimensions) {
        description += little(dimension, 8);
    }
    return raw_tensor(description + little(type, 4) + little(offset, 8));
}

Gguf& Gguf::raw_tensor(std::string_view description) {
    ++tensor_count_;
    tensors_ += description;
    return *this;
}

std::string Gguf::header() const {
    return magic + little(version, 4) + little(tensor_count_ + extra_tensors, 8) +
           little(metadata_count_ + extra_metadata, 8) + metadata_ + tensors_;
}

std::string Gguf::file(std::size_t data_bytes, std::size_t alignment) const {
    std::string bytes = header();
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment, '\0');
    return bytes + counting_bytes(data_bytes);
}

TemporaryFolder::TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "stagehand-model-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) {
        throw std::runtime_error("cannot make a temporary folder");
    }
    path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
}

std::string TemporaryFolder::path(std::string_view name) const {
    return name.empty() ? path_ : path_ + "/" + std::string(name);
}

std::string TemporaryFolder::write(std::string_view name, std::string_view content) const {
    const std::string to = path(name);
    fs::create_directories(fs::path(to).parent_path());
    std::ofstream out(to, std::ios::binary);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.close();
    if (!out) {
        throw std::runtime_error("cannot write " + to);
    }
    return to;
}

Model read_safetensors_bytes(std::string_view bytes, const ReadOptions& options) {
    MemorySource source("memory", bytes);
    Model model;
    read_safetensors(source, options, model);
    return model;
}

Model read_gguf_bytes(std::string_view bytes, const ReadOptions& options) {
    MemorySource source("memory", bytes);
    Model model;
    read_gguf(source, options, model);
    return model;
}

void PrintTo(const BadInput& input, std::ostream* out) { *out << input.name; }

ModelError error_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const ModelError& error) {
        return error;
    }
    ADD_FAILURE() << "no error";
    return {"", "", ""};
}

Tensor tensor_named(const Model& model, std::string_view name) {
    for (const Tensor& tensor : model.tensors) {
        if (tensor.name == name) {
            return tensor;
        }
    }
    ADD_FAILURE() << "no tensor " << name;
    return {};
}

}  // namespace stagehand::cli::model::test
