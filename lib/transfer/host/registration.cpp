#include "transfer/host/registration.h"

#include <algorithm>

#include "base/log.h"

namespace stagehand::transfer {
namespace {

// Recent drivers refuse 512 GiB or more in one call.
constexpr uint64_t kLargestRegistration = uint64_t(256) << 30;
// The size of the call is not the reason for a refusal below this size.
constexpr uint64_t kSmallestPiece = uint64_t(64) << 20;

}  // namespace

Status register_range(BackendDevice& device, void* memory, uint64_t bytes, Registration* out) {
    char* const begin = static_cast<char*>(memory);
    Status status;
    for (uint64_t piece = std::min(bytes, kLargestRegistration);;
         piece = std::max(piece / 4 / kSmallestPiece, uint64_t(1)) * kSmallestPiece) {
        *out = {piece, 0};
        status = Status();
        while (status.ok() && out->registered_bytes < bytes) {
            const uint64_t next = std::min(piece, bytes - out->registered_bytes);
            status = device.host_register(begin + out->registered_bytes, next);
            if (status.ok()) out->registered_bytes += next;
        }
        // If one piece was accepted, the driver refuses because of the total size. Smaller pieces would gain little
        // then.
        if (status.ok() || out->registered_bytes > 0 || piece <= kSmallestPiece) break;
    }
    if (out->registered_bytes == 0) out->piece_bytes = 0;
    return status;
}

bool unregister_range(BackendDevice& device, void* memory, const Registration& registration) {
    bool all = true;
    for (uint64_t at = 0; at < registration.registered_bytes; at += registration.piece_bytes) {
        void* const piece = static_cast<char*>(memory) + at;
        Status status = device.host_unregister(piece);
        if (!status.ok()) status = device.host_unregister(piece);  // the first failure may be temporary
        if (status.ok()) continue;
        log_line(SH_LOG_WARNING, "host memory cannot be unpinned and stays pinned: %s", status.text());
        all = false;
    }
    return all;
}

}  // namespace stagehand::transfer
