#include "backend/backend_device.h"

#include <chrono>

namespace stagehand {

const char* error_text(const sh_backend& table) {
    const char* const text = table.last_error();
    return text ? text : "the backend gives no reason";
}

uint64_t BackendDevice::now_ns() const {
    if (table_.clock) return table_.clock(device_);
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count());
}

Status BackendDevice::memory_info(uint64_t* free, uint64_t* total) {
    if (lent_) {
        *free = lent_->free_bytes();
        *total = lent_->bytes();
        return Status();
    }
    SH_TRY(check(table_.memory_info(device_, free, total), "memory_info"));
    if (*free <= *total) return Status();
    return Status(SH_ERROR_BACKEND, std::string(table_.name) + " memory_info: the backend reports " +
                                        std::to_string(*free) + " bytes free of " + std::to_string(*total));
}

Status BackendDevice::to_thread_handle(sh_stream* stream) const {
    if (!is_of_this_thread(*stream))
        return Status(SH_ERROR_INVALID_STATE, "the stream is the default stream of another thread");
    *stream = thread_handle_;
    return Status();
}

// Kept out of line, because only failures should pay for a text. Calls of the device do not throw.
Status BackendDevice::failure(sh_status code, const char* call) const noexcept {
    try {
        return Status(code, std::string(table_.name) + " " + call + ": " + error_text(table_));
    } catch (const std::bad_alloc&) {
        return Status(code);
    }
}

}  // namespace stagehand
