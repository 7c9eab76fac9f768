#include "packed_description.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>

#include "checks.h"
#include "codec/frame_header.h"
#include "element_format.h"
#include "element_type.h"
#include "error.h"
#include "model.h"
#include "text.h"

namespace stagehand::cli::model {

namespace {

constexpr std::uint64_t version = 1;

PlainTensor parse_tensor(const std::string& name, const nlohmann::json& json) {
    const auto fail = [&](const char* why) { throw std::invalid_argument("tensor " + in_quotes(name) + ": " + why); };
    if (!json.is_object() || !json.contains("dtype") || !json["dtype"].is_string() || !json.contains("shape") ||
        !json["shape"].is_array())
        fail("has no dtype and shape");
    PlainTensor tensor;
    tensor.dtype = json["dtype"].get<std::string>();
    for (const nlohmann::json& length : json["shape"]) {
        if (!length.is_number_unsigned()) fail("has a shape that is not made of numbers");
        tensor.shape.push_back(length.get<std::uint64_t>());
    }
    return tensor;
}

// What the packed tensor itself says of its contents. Throws if it is none, or was another tensor.
void check_header(ByteSource& source, const Tensor& packed, const ElementType& type, std::uint64_t contents) {
    std::array<std::uint8_t, codec::kFrameHeaderBytes> bytes{};
    const auto head = std::span(bytes).first(std::min<std::uint64_t>(bytes.size(), packed.bytes));
    source.read(packed.offset, {reinterpret_cast<char*>(head.data()), head.size()});
    codec::FrameHeader header{};
    if (const std::string why = codec::read_frame_header(head, packed.bytes, &header); !why.empty())
        throw ModelError(source.name(), tensor_field(packed.name), "not a packed tensor: " + why);
    if (codec::format_of(header.format) != format_of_dtype(type.name) || header.contents_bytes != contents) {
        throw ModelError(source.name(), tensor_field(packed.name),
                         "not a packed tensor of the type and the shape that the metadata says");
    }
}

}  // namespace

std::string description_of(const PackedTensors& packed) {
    nlohmann::json tensors = nlohmann::json::object();
    for (const auto& [name, tensor] : packed) tensors[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}};
    return nlohmann::json{{"version", version}, {"tensors", std::move(tensors)}}.dump();
}

PackedTensors parse_description(const std::string& text) {
    const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
    if (json.is_discarded() || !json.is_object() || !json.contains("version") ||
        !json["version"].is_number_unsigned() || !json.contains("tensors") || !json["tensors"].is_object())
        throw std::invalid_argument("is not a description of packed tensors");
    if (json["version"].get<std::uint64_t>() != version) {
        throw std::invalid_argument("is of version " + std::to_string(json["version"].get<std::uint64_t>()) +
                                    ", and only version " + std::to_string(version) + " is known");
    }
    PackedTensors packed;
    for (const auto& [name, tensor] : json["tensors"].items()) packed.emplace(name, parse_tensor(name, tensor));
    return packed;
}

void apply_description(const std::string& text, ByteSource& source, std::size_t first, Model& model) {
    const std::string& file = source.name();
    PackedTensors packed;
    try {
        packed = parse_description(text);
    } catch (const std::invalid_argument& problem) {
        throw ModelError(file, "metadata " + in_quotes(packed_key), problem.what());
    }
    std::size_t found = 0;
    for (std::size_t i = first; i < model.tensors.size(); ++i) {
        Tensor& tensor = model.tensors[i];
        const auto plain = packed.find(tensor.name);
        if (plain == packed.end()) continue;
        ++found;
        const auto fail = [&](std::string_view why) { throw ModelError(file, tensor_field(tensor.name), why); };
        const ElementType* const type = safetensors_type(plain->second.dtype);
        if (tensor.dtype != "U8") fail("is packed by the metadata, but its elements are not bytes");
        if (tensor.bytes == 0) fail("is packed by the metadata, but has no bytes");
        if (type == nullptr) fail("was packed from elements of the unknown type " + in_quotes(plain->second.dtype));
        const TensorSize size = tensor_size(*type, plain->second.shape);
        if (!size.problem.empty()) fail(size.problem);
        check_header(source, tensor, *type, size.bytes);
        tensor.packed_bytes = tensor.bytes;
        tensor.bytes = size.bytes;
        tensor.dtype = type->name;
        tensor.shape = model.arena.copy(plain->second.shape);
    }
    if (found != packed.size()) throw ModelError(file, "metadata", "describes a packed tensor that is not in the file");
}

}  // namespace stagehand::cli::model
