// GradualMemory: host memory that becomes present and pinned piece by piece, so that copies can begin with the first
// piece.
#pragma once

#include <cstdint>

#include "backend/backend_device.h"
#include "base/status.h"

namespace stagehand::transfer {

// Anonymous memory in huge pages. A piece is ready when its pages are present, and pinned if the system allows it. The
// pieces become ready in their order. The class is move-only. One caller at a time.
class GradualMemory {
public:
    // Every piece but the last has this size. No copy may cross a multiple of it: drivers refuse a copy that spans two
    // registrations.
    static constexpr uint64_t kPieceBytes = uint64_t(256) << 20;

    GradualMemory() = default;
    ~GradualMemory() { reset(); }
    GradualMemory(GradualMemory&& other) noexcept { *this = static_cast<GradualMemory&&>(other); }
    GradualMemory& operator=(GradualMemory&& other) noexcept;

    // Takes only addresses. Returns SH_ERROR_OUT_OF_HOST_MEMORY if the machine or the cgroup has less memory left.
    static Status reserve(BackendDevice& device, uint64_t bytes, GradualMemory* out);

    void* data() const { return data_; }
    uint64_t reserved_bytes() const { return mapped_bytes_; }
    // Pinned or not, counted from the start.
    uint64_t ready_bytes() const { return ready_bytes_; }
    bool is_ready() const { return ready_bytes_ == mapped_bytes_; }
    // The part of ready_bytes() that the contents can use, and the pinned part of it.
    uint64_t bytes() const { return ready_bytes_ < bytes_ ? ready_bytes_ : bytes_; }
    uint64_t pinned_bytes() const { return pinned_bytes_ < bytes_ ? pinned_bytes_ : bytes_; }

    // Whether pieces are to be pinned, from now on.
    void set_pins(bool pins) { pins_ = pins; }
    bool pins() const { return pins_; }

    // The next piece is ready. Its pages were made present, and pinned if `pinned`.
    void note_ready(bool pinned);
    // The size of the piece that begins at a multiple of kPieceBytes.
    uint64_t piece_at(uint64_t offset) const;

    // Returns false if the memory stays for good: the driver does not unpin it, or stray copies may use it.
    bool reset();
    // Forgets the memory without freeing it. For memory that a device may use for ever. reset() does so by itself if
    // stray copies may use the memory.
    void abandon();

private:
    BackendDevice* device_ = nullptr;
    void* data_ = nullptr;
    uint64_t bytes_ = 0;
    uint64_t mapped_bytes_ = 0;  // rounded up to pages
    uint64_t ready_bytes_ = 0;
    uint64_t pinned_bytes_ = 0;  // counted from the start
    uint64_t mark_ = 0;          // see StrayCopies
    bool pins_ = true;
};

}  // namespace stagehand::transfer
