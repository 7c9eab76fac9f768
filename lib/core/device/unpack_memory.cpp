#include "core/device/unpack_memory.h"

#include <algorithm>

namespace stagehand::core {
namespace {

constexpr uint64_t kMostBytes = 32 << 20;
// The memory is this part of the share, between its limits. An engine's thread queues each batch, so small batches cost
// it more time than the memory is worth.
constexpr uint64_t kPartOfShare = 32;
constexpr uint64_t kLeastShare = 4;  // and the share must be so many times as large

}  // namespace

uint64_t UnpackMemory::pages_for(uint64_t share_pages, uint64_t page_bytes) {
    const uint64_t part = share_pages / kPartOfShare * page_bytes;
    const uint64_t bytes = std::max(transfer::Unpacker::least_bytes(), std::min(kMostBytes, part));
    const uint64_t pages = (bytes + page_bytes - 1) / page_bytes;
    return pages <= share_pages / kLeastShare ? pages : 0;
}

uint64_t UnpackMemory::batch_bytes(uint64_t share_pages) const {
    return unpacker_.slot_bytes_in(pages_for(share_pages, memory_.page_bytes()) * memory_.page_bytes());
}

Status UnpackMemory::take(const UnpackPlan& plan) {
    SH_TRY(memory_.take(plan.all_pages()));
    unpack_bytes_ = memory_.bytes() / plan.all_pages() * plan.pages;
    const Status status = unpacker_.open(lanes_, memory_.address(), unpack_bytes_);
    if (status.ok())
        plan_ = plan;
    else
        (void)free().ok();
    return status;
}

Status UnpackMemory::open_to_record(transfer::Unpacker* out) {
    return unpacker_.is_open() ? out->open_to_record(lanes_, memory_.address(), unpack_bytes_) : Status();
}

Status UnpackMemory::free() {
    SH_TRY(unpacker_.close());
    SH_TRY(memory_.free());
    plan_ = {};
    return Status();
}

}  // namespace stagehand::core
