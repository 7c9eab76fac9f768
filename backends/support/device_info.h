// give_info: hands the description of a device to a library, which may know fewer fields.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include <stagehand/backend.h>

namespace stagehand::support {

inline void give_info(sh_backend_device_info info, sh_backend_device_info* out) {
    // The size of the struct in the first version of the interface.
    constexpr uint32_t kLeast = offsetof(sh_backend_device_info, reserved) + sizeof(uint32_t);
    info.struct_size = std::clamp<uint32_t>(out->struct_size, kLeast, sizeof info);
    std::memcpy(out, &info, info.struct_size);
}

}  // namespace stagehand::support
