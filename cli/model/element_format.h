// The floating-point formats of the codec, by the names of safetensors.
#pragma once

#include <optional>
#include <string_view>

#include "codec/float_format.h"

namespace stagehand::cli::model {

// Nothing if elements of this type are not packed.
inline std::optional<codec::FloatFormat> format_of_dtype(std::string_view dtype) {
    if (dtype == "BF16") return codec::FloatFormat::bf16;
    if (dtype == "F16") return codec::FloatFormat::f16;
    if (dtype == "F32") return codec::FloatFormat::f32;
    if (dtype == "F8_E4M3") return codec::FloatFormat::f8_e4m3;
    if (dtype == "F8_E5M2") return codec::FloatFormat::f8_e5m2;
    return std::nullopt;
}

}  // namespace stagehand::cli::model
