#include "backend/backend_device.h"

#include <chrono>

namespace stagehand {

uint64_t BackendDevice::now_ns() const {
    if (table_.clock) return table_.clock(device_);
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

// Kept out of line: only failures pay for making a text.
Status BackendDevice::failure(sh_status code, const char* call) const {
    return Status(code, std::string(table_.name) + " " + call + ": " + table_.last_error());
}

}  // namespace stagehand
