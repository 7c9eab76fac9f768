#include "transfer/host/pinned_memory.h"

#include <cstring>
#include <new>
#include <utility>

#include "backend/stray_copies.h"
#include "base/log.h"
#include "base/size_text.h"
#include "platform/anonymous_memory.h"
#include "transfer/host/host_pages.h"
#include "transfer/host/registration.h"

namespace stagehand::transfer {

PinnedMemory::~PinnedMemory() { reset(); }

PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
    if (this == &other) return *this;
    reset();
    device_ = std::exchange(other.device_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
    registered_piece_ = std::exchange(other.registered_piece_, 0);
    registered_bytes_ = std::exchange(other.registered_bytes_, 0);
    mark_ = std::exchange(other.mark_, 0);
    pinned_ = std::exchange(other.pinned_, false);
    return *this;
}

Status PinnedMemory::allocate(BackendDevice& device, uint64_t bytes, PinnedMemory* out) {
    try {
        PinnedMemory memory;
        memory.device_ = &device;
        memory.mark_ = StrayCopies::of_process().mark();
        SH_TRY(take_host_pages(device, bytes, &memory.data_, &memory.mapped_bytes_));
        memory.bytes_ = bytes;
        if (device.host_policy().allocate)
            std::memset(memory.data_, 0, memory.mapped_bytes_);
        else
            SH_TRY(platform::touch(memory.data_, memory.mapped_bytes_));
        Registration registration = {memory.mapped_bytes_, memory.mapped_bytes_};
        Status refused;
        if (!device.host_policy().is_pinned)
            refused = register_range(device, memory.data_, memory.mapped_bytes_, &registration);
        memory.registered_piece_ = registration.piece_bytes;
        memory.registered_bytes_ = registration.registered_bytes;
        memory.pinned_ = refused.ok();
        if (!refused.ok()) {
            log_line(SH_LOG_WARNING, "only %s of %s of host memory could be pinned, so copies of the rest are slow: %s",
                     size_text(memory.registered_bytes_).c_str(), size_text(memory.mapped_bytes_).c_str(),
                     refused.text());
        }
        *out = std::move(memory);
        return Status();
    } catch (const std::bad_alloc&) {
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY);
    }
}

bool PinnedMemory::reset() {
    if (!data_) return true;
    const bool frees =
        !must_stay(mark_, mapped_bytes_) &&
        (device_->host_policy().is_pinned || unregister_range(*device_, data_, {registered_piece_, registered_bytes_}));
    if (frees) give_host_pages(*device_, data_, mapped_bytes_);
    abandon();
    return frees;
}

void PinnedMemory::abandon() {
    device_ = nullptr;
    data_ = nullptr;
    bytes_ = mapped_bytes_ = registered_piece_ = registered_bytes_ = mark_ = 0;
    pinned_ = false;
}

}  // namespace stagehand::transfer
