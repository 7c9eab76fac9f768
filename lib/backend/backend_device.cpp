#include "backend/backend_device.h"

#include <chrono>

namespace stagehand {

uint64_t BackendDevice::now_ns() const {
    if (table_.clock) return table_.clock(device_);
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

Status BackendDevice::to_thread_handle(sh_stream* stream) const {
    if (!is_of_this_thread(*stream)) return Status(SH_ERROR_INVALID_STATE, "the stream is another thread's own default stream");
    *stream = thread_handle_;
    return Status();
}

// Kept out of line: only failures pay for making a text. Calls of the device do not throw.
Status BackendDevice::failure(sh_status code, const char* call) const noexcept {
    try {
        return Status(code, std::string(table_.name) + " " + call + ": " + table_.last_error());
    } catch (const std::bad_alloc&) {
        return Status(code);
    }
}

}  // namespace stagehand
