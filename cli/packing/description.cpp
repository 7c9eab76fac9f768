#include "packing/description.h"

#include <stdexcept>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/text.h"

namespace stagehand::cli {

namespace {

constexpr std::uint64_t version = 1;

PlainTensor parse_tensor(const std::string& name, const nlohmann::json& json) {
    const auto fail = [&](const char* why) {
        throw std::invalid_argument(fmt::format("tensor {}: {}", model::in_quotes(name), why));
    };
    if (!json.is_object() || !json.contains("dtype") || !json["dtype"].is_string() || !json.contains("shape") ||
        !json["shape"].is_array()) {
        fail("has no dtype and shape");
    }
    PlainTensor tensor;
    tensor.dtype = json["dtype"].get<std::string>();
    for (const nlohmann::json& length : json["shape"]) {
        if (!length.is_number_unsigned()) {
            fail("has a shape that is not made of numbers");
        }
        tensor.shape.push_back(length.get<std::uint64_t>());
    }
    return tensor;
}

}  // namespace

std::string description_of(const PackedTensors& packed) {
    nlohmann::json tensors = nlohmann::json::object();
    for (const auto& [name, tensor] : packed) {
        tensors[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}};
    }
    return nlohmann::json{{"version", version}, {"tensors", std::move(tensors)}}.dump();
}

PackedTensors parse_description(const std::string& text) {
    const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
    if (json.is_discarded() || !json.is_object() || !json.contains("version") ||
        !json["version"].is_number_unsigned() || !json.contains("tensors") || !json["tensors"].is_object()) {
        throw std::invalid_argument("is not a description of packed tensors");
    }
    if (json["version"].get<std::uint64_t>() != version) {
        throw std::invalid_argument(fmt::format("is of version {}, and this command knows version {}",
                                                json["version"].get<std::uint64_t>(), version));
    }
    PackedTensors packed;
    for (const auto& [name, tensor] : json["tensors"].items()) {
        packed.emplace(name, parse_tensor(name, tensor));
    }
    return packed;
}

}  // namespace stagehand::cli
