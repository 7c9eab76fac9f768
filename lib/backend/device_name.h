// The names of devices: "cuda:1" is device 1 of backend "cuda". "cuda" is its first device.
#pragma once

#include <optional>
#include <string>

#include "base/number.h"
#include "base/status.h"

namespace stagehand {

inline Status split_name(const std::string& name, std::string* out_backend, uint32_t* out_index) {
    const size_t colon = name.find(':');
    *out_backend = name.substr(0, colon);
    *out_index = 0;
    if (colon == std::string::npos && !out_backend->empty()) return Status();
    const std::string digits = colon == std::string::npos ? "" : name.substr(colon + 1);
    const std::optional<uint32_t> number = digits.size() <= 4 ? read_number<uint32_t>(digits) : std::nullopt;
    if (out_backend->empty() || !number)
        return Status(SH_ERROR_INVALID_ARGUMENT, "device name \"" + name + "\" is not of the form backend:number");
    *out_index = *number;
    return Status();
}

}  // namespace stagehand
