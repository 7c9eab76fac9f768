// Version, statuses, the last error, the log.
#include "api/guard.h"
#include "base/log.h"

using namespace stagehand;

extern "C" {

uint32_t sh_version(void) { return SH_VERSION_MAJOR * 1000000 + SH_VERSION_MINOR * 1000 + SH_VERSION_PATCH; }

const char* sh_status_string(sh_status status) {
    switch (status) {
        case SH_OK:
            return "SH_OK";
        case SH_NOT_READY:
            return "SH_NOT_READY";
        case SH_KEPT:
            return "SH_KEPT";
        case SH_ERROR_INVALID_ARGUMENT:
            return "SH_ERROR_INVALID_ARGUMENT";
        case SH_ERROR_INVALID_HANDLE:
            return "SH_ERROR_INVALID_HANDLE";
        case SH_ERROR_INVALID_STRUCT:
            return "SH_ERROR_INVALID_STRUCT";
        case SH_ERROR_INVALID_STATE:
            return "SH_ERROR_INVALID_STATE";
        case SH_ERROR_NOT_FOUND:
            return "SH_ERROR_NOT_FOUND";
        case SH_ERROR_UNSUPPORTED:
            return "SH_ERROR_UNSUPPORTED";
        case SH_ERROR_FORKED:
            return "SH_ERROR_FORKED";
        case SH_ERROR_STALE:
            return "SH_ERROR_STALE";
        case SH_ERROR_BUDGET:
            return "SH_ERROR_BUDGET";
        case SH_ERROR_OUT_OF_DEVICE_MEMORY:
            return "SH_ERROR_OUT_OF_DEVICE_MEMORY";
        case SH_ERROR_OUT_OF_HOST_MEMORY:
            return "SH_ERROR_OUT_OF_HOST_MEMORY";
        case SH_ERROR_HELD:
            return "SH_ERROR_HELD";
        case SH_ERROR_BUSY:
            return "SH_ERROR_BUSY";
        case SH_ERROR_SOURCE:
            return "SH_ERROR_SOURCE";
        case SH_ERROR_CALLBACK:
            return "SH_ERROR_CALLBACK";
        case SH_ERROR_IO:
            return "SH_ERROR_IO";
        case SH_ERROR_CANCELLED:
            return "SH_ERROR_CANCELLED";
        case SH_ERROR_CHECKSUM:
            return "SH_ERROR_CHECKSUM";
        case SH_ERROR_BACKEND:
            return "SH_ERROR_BACKEND";
        case SH_ERROR_BACKEND_UNAVAILABLE:
            return "SH_ERROR_BACKEND_UNAVAILABLE";
        case SH_ERROR_BACKEND_LOAD:
            return "SH_ERROR_BACKEND_LOAD";
        case SH_ERROR_RUNTIME_LOST:
            return "SH_ERROR_RUNTIME_LOST";
        case SH_ERROR_DEVICE_LOST:
            return "SH_ERROR_DEVICE_LOST";
        case SH_ERROR_INTERNAL:
            return "SH_ERROR_INTERNAL";
        case SH_ERROR_DUPLICATE_LIBRARY:
            return "SH_ERROR_DUPLICATE_LIBRARY";
        default:
            return status < 0 ? "an error unknown to this library" : "a status unknown to this library";
    }
}

uint64_t sh_last_error(char* buffer, uint64_t capacity) { return api::last_error(buffer, capacity); }

sh_status sh_set_log(int32_t level, sh_log_fn log, void* user_data) {
    return api::guarded([&] {
        if (set_log(level, log, user_data) == SH_OK) return Status();
        return Status(SH_ERROR_INVALID_ARGUMENT,
                      "level " + std::to_string(level) + " is not between 0 and SH_LOG_DEBUG");
    });
}

}  // extern "C"
