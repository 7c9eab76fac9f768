// HostPages: the library's host memory, and the part of it that is registered with a device. The pages are anonymous
// memory of the system, or memory of the engine's allocator.
#pragma once

#include <cstdint>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/host/registration.h"

namespace stagehand::transfer {

// Move-only.
class HostPages {
public:
    HostPages() = default;
    ~HostPages() { reset(); }
    HostPages(HostPages&& other) noexcept { *this = static_cast<HostPages&&>(other); }
    HostPages& operator=(HostPages&& other) noexcept;

    void* data() const { return at_.data; }

    // Returns false if the memory stays for good: the driver does not unpin it, or stray copies may use it. The log
    // tells.
    bool reset();
    // Forgets the memory without freeing it. For memory that a device may use for ever. reset() does so by itself if
    // stray copies may use the memory.
    void abandon() { at_ = {}; }

protected:
    // Memory of at least `bytes`: zeroed, or with any contents if it is the engine's. SH_ERROR_OUT_OF_HOST_MEMORY: the
    // system has no memory, a limit of the cgroup would be passed, or the engine's allocator gives none.
    // SH_ERROR_CALLBACK: that allocator gave memory that does not begin at a page.
    Status take(BackendDevice& device, uint64_t bytes);

    struct State {
        BackendDevice* device = nullptr;
        void* data = nullptr;
        uint64_t bytes = 0;         // that were asked for
        uint64_t mapped_bytes = 0;  // rounded up to pages
        uint64_t ready_bytes = 0;   // of gradual memory: present, counted from the start
        Registration registration;
        uint64_t mark = 0;  // see StrayCopies
        bool pins = true;   // of gradual memory: its pieces are to be pinned
    };
    State at_;
};

}  // namespace stagehand::transfer
