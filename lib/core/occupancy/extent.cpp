#include "core/occupancy/extent.h"

#include <algorithm>
#include <bit>

#include "backend/limits.h"
#include "base/once_more.h"

namespace stagehand::core {

// Powers of two, the largest first, so that each handle lies at a multiple of its size.
void Extent::divide() {
    const uint64_t largest = std::min(device_.info().largest_page_bytes, limits::kLargestPage);
    handles_.reserve(bytes_ / largest + static_cast<uint64_t>(std::popcount(bytes_ % largest)));
    for (uint64_t offset = 0; offset < bytes_;) {
        Handle handle;
        handle.offset = offset;
        handle.bytes = std::min(largest, std::bit_floor(bytes_ - offset));
        handles_.push_back(handle);
        offset += handle.bytes;
    }
}

Status Extent::open() {
    if (!maps_pages()) {
        SH_TRY(device_.range_reserve(bytes_, device_.info().granularity_bytes, &address_));
        totals_.held_bytes += bytes_;
        return Status();
    }
    divide();
    SH_TRY(device_.range_reserve(bytes_, handles_.front().bytes, &address_));
    for (Handle& handle : handles_) {
        SH_TRY(attach(handle));
        handle.filled = true;
    }
    return Status();
}

Status Extent::close() {
    for (Handle& handle : handles_) SH_TRY(detach(handle));
    if (!address_) return Status();
    SH_TRY(once_more([&] { return device_.range_free(address_, bytes_); }));
    if (!maps_pages()) totals_.held_bytes -= bytes_;
    address_ = 0;
    return Status();
}

template <class Call>
Status Extent::timed(uint64_t* total, Call&& call) {
    const uint64_t began = device_.now_ns();
    const Status status = call();
    *total += device_.now_ns() - began;
    return status;
}

Status Extent::attach(Handle& handle) {
    if (!handle.page) {
        SH_TRY(timed(&totals_.create_ns, [&] { return device_.pages_create(handle.bytes, 1, &handle.page); }));
        totals_.held_bytes += handle.bytes;
    }
    if (handle.mapped) return Status();
    SH_TRY(timed(&totals_.map_ns,
                 [&] { return device_.pages_map(address_ + handle.offset, handle.bytes, 1, &handle.page); }));
    handle.mapped = true;
    return Status();
}

Status Extent::detach(Handle& handle) {
    if (handle.mapped) {
        SH_TRY(timed(&totals_.unmap_ns, [&] {
            return once_more([&] { return device_.pages_unmap(address_ + handle.offset, handle.bytes, 1); });
        }));
        handle.mapped = false;
        handle.filled = false;
    }
    if (!handle.page) return Status();
    SH_TRY(timed(&totals_.destroy_ns,
                 [&] { return once_more([&] { return device_.pages_destroy(handle.bytes, 1, &handle.page); }); }));
    handle.page = 0;
    totals_.held_bytes -= handle.bytes;
    return Status();
}

uint64_t Extent::device_bytes() const {
    if (!maps_pages()) return address_ ? bytes_ : 0;
    uint64_t sum = 0;
    for (const Handle& handle : handles_) sum += handle.page ? handle.bytes : 0;
    return sum;
}

uint64_t Extent::staged_bytes() const {
    uint64_t sum = 0;
    if (leaving == Leaving::stage)
        for (const Handle& handle : handles_) sum += handle.filled ? 0 : handle.bytes;
    return sum;
}

Status Extent::take_host_memory() {
    if (host_.data() || device_.has(SH_BACKEND_CONTENTLESS)) return Status();
    return transfer::GradualMemory::reserve(device_, bytes_, &host_);
}

void* Extent::host_at(uint64_t offset) const {
    if (host_.data()) return static_cast<char*>(host_.data()) + offset;
    static char nothing = 0;
    return &nothing;
}

}  // namespace stagehand::core
