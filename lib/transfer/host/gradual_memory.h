// GradualMemory: host memory that becomes present and pinned piece by piece, so that copies can begin with the first
// piece.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/host/host_pages.h"

namespace stagehand::transfer {

// Anonymous memory in huge pages. A piece is ready when its pages are present, and pinned if the system allows it. The
// pieces become ready in their order. One caller at a time.
class GradualMemory : public HostPages {
public:
    // Every piece but the last has this size. No copy may cross a multiple of it: drivers refuse a copy that spans two
    // registrations.
    static constexpr uint64_t kPieceBytes = uint64_t(256) << 20;

    // Takes only addresses. Returns SH_ERROR_OUT_OF_HOST_MEMORY if the machine or the cgroup has less memory left.
    static Status reserve(BackendDevice& device, uint64_t bytes, GradualMemory* out) {
        GradualMemory memory;
        SH_TRY(memory.take(device, bytes));
        memory.at_.registration.piece_bytes = kPieceBytes;
        *out = static_cast<GradualMemory&&>(memory);
        return Status();
    }

    uint64_t reserved_bytes() const { return at_.mapped_bytes; }
    // Pinned or not, counted from the start.
    uint64_t ready_bytes() const { return at_.ready_bytes; }
    bool is_ready() const { return at_.ready_bytes == at_.mapped_bytes; }
    // The part of ready_bytes() that the contents can use, and the pinned part of it.
    uint64_t bytes() const { return std::min(at_.ready_bytes, at_.bytes); }
    uint64_t pinned_bytes() const { return std::min(at_.registration.registered_bytes, at_.bytes); }

    // Whether pieces are to be pinned, from now on.
    void set_pins(bool pins) { at_.pins = pins; }
    bool pins() const { return at_.pins; }

    // The next piece is ready. Its pages were made present, and pinned if `pinned`.
    void note_ready(bool pinned) {
        const uint64_t piece = piece_at(at_.ready_bytes);
        if (pinned && at_.registration.registered_bytes == at_.ready_bytes) at_.registration.registered_bytes += piece;
        at_.ready_bytes += piece;
    }
    // The size of the piece that begins at a multiple of kPieceBytes.
    uint64_t piece_at(uint64_t offset) const { return std::min(kPieceBytes, at_.mapped_bytes - offset); }
};

}  // namespace stagehand::transfer
