#include "transfer/host/registration.h"

#include <algorithm>

#include "base/log.h"

namespace stagehand::transfer {
namespace {

// Recent drivers refuse 512 GiB and more in one call.
constexpr uint64_t kLargestPiece = uint64_t(256) << 30;
// Below this a refusal is not about the size of the call.
constexpr uint64_t kSmallestPiece = uint64_t(64) << 20;

}  // namespace

Status register_range(BackendDevice& device, void* memory, uint64_t bytes, Registration* out) {
    char* const begin = static_cast<char*>(memory);
    Status status;
    for (uint64_t piece = std::min(bytes, kLargestPiece);;
         piece = std::max(piece / 4 / kSmallestPiece, uint64_t(1)) * kSmallestPiece) {
        *out = {piece, 0};
        status = Status();
        while (status.ok() && out->registered_bytes < bytes) {
            const uint64_t next = std::min(piece, bytes - out->registered_bytes);
            status = device.host_register(begin + out->registered_bytes, next);
            if (status.ok()) out->registered_bytes += next;
        }
        // Once a piece was taken the refusal is about how much there is in all, and smaller ones would gain
        // little.
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
        if (!status.ok()) status = device.host_unregister(piece);   // it may have been a passing failure
        if (status.ok()) continue;
        log_line(SH_LOG_WARNING, "host memory stays pinned: %s", status.text());
        all = false;
    }
    return all;
}

}  // namespace stagehand::transfer
