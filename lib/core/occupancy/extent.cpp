#include "core/occupancy/extent.h"

#include <algorithm>
#include <bit>

#include "base/limits.h"
#include "base/once_more.h"
#include "base/size_text.h"

namespace stagehand::core {
namespace {

// The room for the headers of so many bytes.
uint64_t headers_of(uint64_t bytes, uint32_t format) {
    if (!format) return 0;
    return codec::room_for_headers(bytes / codec::fields_of(static_cast<codec::FloatFormat>(format)).bytes());
}

}  // namespace

// The largest handles first, so that each lies at a multiple of its size. What is left is one handle where the device
// has a use for large ones, because its calls take as long for many bytes as for few. The rest is powers of two.
void Extent::divide() {
    const sh_backend_device_info& info = device_.info();
    const uint64_t largest =
        std::min(std::max(info.largest_handle_bytes, info.largest_page_bytes), limits::kLargestPage);
    page_bytes_ = std::min(kLargestContentPage, info.largest_page_bytes);
    const auto size = [&](uint64_t left) {
        const bool one = info.largest_handle_bytes && left < largest && left > page_bytes_;
        return one ? left / page_bytes_ * page_bytes_ : std::min(largest, std::bit_floor(left));
    };
    handles_.reserve(bytes_ / largest + static_cast<uint64_t>(std::popcount(bytes_ % largest)));
    for (uint64_t offset = 0; offset < bytes_;) {
        Handle handle;
        handle.offset = offset;
        handle.bytes = size(bytes_ - offset);
        handles_.push_back(handle);
        offset += handle.bytes;
    }
    divide_into_pages();
}

void Extent::divide_into_pages() {
    for (Handle& handle : handles_) {
        handle.first_page = pages_.size();
        for (uint64_t at = 0; at < handle.bytes; at += pages_.back().bytes) {
            Page& page = pages_.emplace_back();
            page.offset = handle.offset + at;
            page.bytes = std::min(handle.bytes, page_bytes_);
        }
        handle.page_count = pages_.size() - handle.first_page;
    }
}

Status Extent::open() {
    if (!maps_pages()) {
        SH_TRY(device_.range_reserve(bytes_, device_.info().granularity_bytes, &address_));
        totals_.held_bytes += bytes_;
        return Status();
    }
    // A budget may be larger than the device, and the tables below grow with the bytes.
    if (uint64_t free = 0, total = 0; device_.memory_info(&free, &total).ok() && bytes_ > total)
        return Status(SH_ERROR_OUT_OF_DEVICE_MEMORY,
                      exact_size_text(bytes_) + " are more than the device has: " + exact_size_text(total));
    divide();
    SH_TRY(device_.range_reserve(bytes_, std::bit_floor(handles_.front().bytes), &address_));
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
        sh_backend_page page = 0;  // a call that fails may have written it
        SH_TRY(timed(&totals_.create_ns, [&] { return device_.pages_create(handle.bytes, 1, &page); }));
        handle.page = page;
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
    if (leaving != Leaving::stage) return sum;
    for (const Handle& handle : handles_) sum += handle.filled ? 0 : used_bytes(handle);
    return sum;
}

uint64_t Extent::used_bytes(const Handle& handle) const {
    uint64_t sum = 0;
    for (size_t i = 0; i < handle.page_count; i++) {
        const Page& page = pages_[handle.first_page + i];
        sum += page.used ? page.bytes : 0;
    }
    return sum;
}

// --- Host memory ---

// What is not used gives its place to others.
void Extent::note_unused(std::span<const AddressRange> ranges) {
    size_t next = 0;
    for (Page& page : pages_) {
        const uint64_t begin = address_ + page.offset, end = begin + page.bytes;
        while (next < ranges.size() && ranges[next].end < end) next++;
        page.used = next == ranges.size() || ranges[next].begin > begin;
        if (page.used) continue;
        page.on_host = page.same = false;
        if (moves(page)) page.place = Page::kNowhere;
    }
}

uint64_t Extent::bytes_of_places() const {
    uint64_t bytes = 0;
    for (const Page& page : pages_) bytes += moves(page) && !page.used ? 0 : page.bytes;
    return bytes;
}

uint64_t Extent::needed_bytes(uint32_t format) const {
    const uint64_t bytes = bytes_of_places();
    return bytes + headers_of(bytes, format);
}

Status Extent::take_host_memory(const Store& store, bool* out_taken) {
    *out_taken = false;
    const bool contents = !device_.has(SH_BACKEND_CONTENTLESS);
    const auto pages = static_cast<uint64_t>(
        std::count_if(pages_.begin(), pages_.end(), [&](const Page& page) { return moves(page) && page.used; }));
    const bool is_there = store.files ? file_ && file_->file().folder() == store.folder : !file_ && host_.data();
    const uint32_t format = store.files || !contents ? 0 : store.format;
    const bool has_headers = store.only_prepares || headers_of(headers_at_, format) <= headers_bytes_;
    const bool enough = contents ? is_there && has_headers : places_ != 0;
    if (!enough || pages > places_) {
        drop_host_memory();
        const uint64_t bytes = contents ? bytes_of_places() : 0, headers = headers_of(bytes, format);
        if (bytes && store.files) SH_TRY(store.files->take(store.folder, bytes, &file_));
        if (bytes && !store.files) SH_TRY(transfer::GradualMemory::reserve(device_, bytes + headers, &host_));
        host_.set_pins(store.pinned);
        *out_taken = bytes != 0;
        places_ = pages;
        headers_at_ = bytes;
        headers_bytes_ = headers;
    }
    if (!store.only_prepares) pack_as(format);
    give_places();
    return Status();
}

// The headers of two formats lie in each other's way.
void Extent::pack_as(uint32_t format) {
    packs_as_ = format;
    for (Page& page : pages_)
        if (format && page.packed && page.packed != format) page.on_host = page.same = false;
}

bool Extent::may_be_packed(const Page& page) const {
    return packs_as_ && page.bytes % codec::bytes_of_tile(static_cast<codec::FloatFormat>(packs_as_)) == 0;
}

codec::TilesApart Extent::tiles_at(const Page& first, uint64_t bytes) const {
    const auto format = static_cast<codec::FloatFormat>(first.packed);
    auto* const host = static_cast<uint8_t*>(host_.data());
    return {format, bytes / codec::fields_of(format).bytes(), host + first.place,
            host + headers_at_ + headers_of(first.place, first.packed)};
}

void Extent::give_places() {
    std::vector<bool> given(places_);
    for (const Page& page : pages_)
        if (moves(page) && page.place != Page::kNowhere) given[page.place / page_bytes_] = true;
    uint64_t next = 0, rest = places_ * page_bytes_;
    for (Page& page : pages_) {
        if (!moves(page)) {
            page.place = rest;
            rest += page.bytes;
        } else if (page.used && page.place == Page::kNowhere) {
            while (given[next]) next++;
            page.place = next++ * page_bytes_;
        }
    }
}

bool Extent::drop_host_memory() {
    const bool freed = host_.reset();
    file_.reset();
    places_ = headers_at_ = headers_bytes_ = 0;
    for (Page& page : pages_) {
        page.place = Page::kNowhere;
        page.on_host = page.same = false;
    }
    return freed;
}

void* Extent::host_at(const Page& page) const {
    if (host_.data()) return static_cast<char*>(host_.data()) + page.place;
    static char nothing = 0;
    return &nothing;
}

void Extent::note_left(const Handle& handle) noexcept {
    for (Page& page : pages_of(handle)) {
        if (page.used && page.copied) {
            page.on_host = true;
            page.hashed = page.compared;
            page.digest = page.found;
        }
        page.same = page.on_host;
    }
}

void Extent::note_new_contents() noexcept {
    for (Page& page : pages_) page.same = false;
}

}  // namespace stagehand::core
