#include "transfer/host/gradual_memory.h"

#include <algorithm>
#include <utility>

#include "backend/stray_copies.h"
#include "transfer/host/host_pages.h"
#include "transfer/host/registration.h"

namespace stagehand::transfer {

GradualMemory& GradualMemory::operator=(GradualMemory&& other) noexcept {
    if (this == &other) return *this;
    reset();
    device_ = std::exchange(other.device_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
    ready_bytes_ = std::exchange(other.ready_bytes_, 0);
    pinned_bytes_ = std::exchange(other.pinned_bytes_, 0);
    mark_ = std::exchange(other.mark_, 0);
    pins_ = std::exchange(other.pins_, true);
    return *this;
}

Status GradualMemory::reserve(BackendDevice& device, uint64_t bytes, GradualMemory* out) {
    GradualMemory memory;
    SH_TRY(take_host_pages(device, bytes, &memory.data_, &memory.mapped_bytes_));
    memory.device_ = &device;
    memory.mark_ = StrayCopies::of_process().mark();
    memory.bytes_ = bytes;
    *out = std::move(memory);
    return Status();
}

uint64_t GradualMemory::piece_at(uint64_t offset) const { return std::min(kPieceBytes, mapped_bytes_ - offset); }

void GradualMemory::note_ready(bool pinned) {
    const uint64_t piece = piece_at(ready_bytes_);
    if (pinned && pinned_bytes_ == ready_bytes_) pinned_bytes_ += piece;
    ready_bytes_ += piece;
}

bool GradualMemory::reset() {
    if (!data_) return true;
    const bool frees =
        !must_stay(mark_, mapped_bytes_) &&
        (device_->host_policy().is_pinned || unregister_range(*device_, data_, {kPieceBytes, pinned_bytes_}));
    if (frees) give_host_pages(*device_, data_, mapped_bytes_);
    abandon();
    return frees;
}

void GradualMemory::abandon() {
    device_ = nullptr;
    data_ = nullptr;
    bytes_ = mapped_bytes_ = ready_bytes_ = pinned_bytes_ = mark_ = 0;
    pins_ = true;
}

}  // namespace stagehand::transfer
