#include "sim/device.h"

#include <algorithm>
#include <atomic>
#include <cinttypes>

#include "base/plain_format.h"
#include "support/device_info.h"
#include "support/last_error.h"
#include "support/packed.h"

namespace stagehand::sim {
namespace {

using support::fail;

// Shared by all devices of the process and all kinds of objects, so that a handle of another device or kind is
// detected.
std::atomic<uint64_t> next_handle{0x1000};

// No processor accepts these addresses here, so any access fails at once. An address is never given out twice.
std::atomic<uint64_t> next_address{uint64_t(1) << 52};

}  // namespace

Device::Device(const Settings& settings) : settings_(settings), table_(settings.granularity_bytes), links_(settings) {}

void Device::describe(sh_backend_device_info* out) const {
    sh_backend_device_info info = {};
    info.flags = SH_BACKEND_FIXED_ADDRESSES | SH_BACKEND_CONTENTLESS | SH_BACKEND_VIRTUAL_TIME;
    plain_format(info.description, sizeof info.description, "simulated device, %" PRIu64 " MiB, %.1f GB/s",
                 settings_.capacity_bytes >> 20, static_cast<double>(settings_.bandwidth) / 1e9);
    info.total_bytes = settings_.capacity_bytes;
    info.granularity_bytes = settings_.granularity_bytes;
    info.largest_page_bytes = settings_.largest_page_bytes;
    info.staging_piece_bytes = settings_.staging_piece_bytes;
    info.link_bytes_per_second = settings_.bandwidth;
    info.copy_latency_ns = settings_.latency_ns;
    info.queue_depth = INT32_MAX;
    support::give_info(info, out);
}

uint64_t Device::now_ns() const {
    std::lock_guard lock(mutex_);
    return now_ns_;
}

void Device::memory_info(uint64_t* out_free, uint64_t* out_total) const {
    std::lock_guard lock(mutex_);
    *out_free = settings_.capacity_bytes - used_bytes_;
    *out_total = settings_.capacity_bytes;
}

sh_status Device::pages_create(uint64_t page_bytes, uint64_t count, sh_backend_page* out_pages) {
    uint64_t bytes = 0;
    if (sh_status status = table_.check_size(page_bytes, count, &bytes); status < 0) return status;
    std::lock_guard lock(mutex_);
    if (bytes > settings_.capacity_bytes - used_bytes_) {
        return fail(SH_ERROR_OUT_OF_DEVICE_MEMORY,
                    "%" PRIu64 " bytes are needed, but only %" PRIu64 " are free of %" PRIu64, bytes,
                    settings_.capacity_bytes - used_bytes_, settings_.capacity_bytes);
    }
    for (uint64_t i = 0; i < count; ++i) out_pages[i] = next_page_ + i;
    if (sh_status status = table_.add_pages(page_bytes, count, out_pages); status < 0) return status;
    next_page_ += count;
    used_bytes_ += bytes;
    return SH_OK;
}

sh_status Device::pages_destroy(uint64_t page_bytes, uint64_t count, const sh_backend_page* pages) {
    std::lock_guard lock(mutex_);
    if (sh_status status = table_.remove_pages(page_bytes, count, pages); status < 0) return status;
    used_bytes_ -= page_bytes * count;
    return SH_OK;
}

sh_status Device::range_reserve(uint64_t bytes, uint64_t alignment, uint64_t* out_address) {
    alignment = std::max(alignment, settings_.granularity_bytes);
    if (bytes == 0 || bytes % settings_.granularity_bytes != 0 || (alignment & (alignment - 1)) != 0 ||
        alignment >= uint64_t(1) << 52 || bytes >= uint64_t(1) << 60) {
        return fail(SH_ERROR_INVALID_ARGUMENT,
                    "cannot reserve %" PRIu64 " bytes aligned to %" PRIu64 ": the size must be a multiple of %" PRIu64
                    ", the alignment a power of two",
                    bytes, alignment, settings_.granularity_bytes);
    }
    // A gap follows each range, so that an overrun of one range does not hit the next range.
    const uint64_t begin =
        next_address.fetch_add(bytes + alignment + settings_.granularity_bytes, std::memory_order_relaxed);
    const uint64_t address = (begin + alignment - 1) & ~(alignment - 1);
    std::lock_guard lock(mutex_);
    if (sh_status status = table_.add_range(address, bytes); status < 0) return status;
    *out_address = address;
    return SH_OK;
}

sh_status Device::range_free(uint64_t address, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    return table_.remove_range(address, bytes);
}

sh_status Device::pages_map(uint64_t address, uint64_t page_bytes, uint64_t count, const sh_backend_page* pages) {
    std::lock_guard lock(mutex_);
    return table_.map(address, page_bytes, count, pages);
}

sh_status Device::pages_unmap(uint64_t address, uint64_t page_bytes, uint64_t count) {
    std::lock_guard lock(mutex_);
    return table_.unmap(address, page_bytes, count);
}

sh_status Device::find_stream(sh_stream handle, Stream** out) {
    const auto found = streams_.find(handle);
    if (found == streams_.end())
        return fail(SH_ERROR_INVALID_HANDLE, "%#" PRIx64 " is not a stream of this device", handle);
    *out = &found->second;
    return SH_OK;
}

sh_status Device::find_event(sh_backend_event handle, Event** out) {
    const auto found = events_.find(handle);
    if (found == events_.end())
        return fail(SH_ERROR_INVALID_HANDLE, "%#" PRIx64 " is not an event of this device", handle);
    *out = &found->second;
    return SH_OK;
}

uint64_t Device::ready_ns(const Stream& stream) {
    now_ns_ += settings_.call_ns;
    return std::max(stream.busy_until_ns, now_ns_);
}

sh_status Device::stream_create(sh_stream* out_stream) {
    const uint64_t handle = next_handle.fetch_add(1, std::memory_order_relaxed);
    std::lock_guard lock(mutex_);
    streams_.emplace(handle, Stream{now_ns_});
    *out_stream = handle;
    return SH_OK;
}

sh_status Device::stream_destroy(sh_stream handle) {
    std::lock_guard lock(mutex_);
    Stream* stream = nullptr;
    if (sh_status status = find_stream(handle, &stream); status < 0) return status;
    streams_.erase(handle);
    return SH_OK;
}

sh_status Device::stream_synchronize(sh_stream handle) {
    std::lock_guard lock(mutex_);
    Stream* stream = nullptr;
    if (sh_status status = find_stream(handle, &stream); status < 0) return status;
    now_ns_ = std::max(now_ns_, stream->busy_until_ns);
    return SH_OK;
}

void Device::synchronize() {
    std::lock_guard lock(mutex_);
    for (const auto& [handle, stream] : streams_) now_ns_ = std::max(now_ns_, stream.busy_until_ns);
}

sh_status Device::stream_wait_event(sh_stream stream_handle, sh_backend_event event_handle) {
    std::lock_guard lock(mutex_);
    Stream* stream = nullptr;
    Event* event = nullptr;
    if (sh_status status = find_stream(stream_handle, &stream); status < 0) return status;
    if (sh_status status = find_event(event_handle, &event); status < 0) return status;
    now_ns_ += settings_.call_ns;
    if (event->recorded) stream->busy_until_ns = std::max(stream->busy_until_ns, event->at_ns);
    return SH_OK;
}

sh_status Device::stream_launch(sh_stream handle, void (*fn)(void*), void* user_data, int64_t busy_ns) {
    {
        std::lock_guard lock(mutex_);
        Stream* stream = nullptr;
        if (sh_status status = find_stream(handle, &stream); status < 0) return status;
        const uint64_t start_ns = ready_ns(*stream);
        if (busy_ns > 0) stream->busy_until_ns = start_ns + static_cast<uint64_t>(busy_ns);
    }
    if (fn) fn(user_data);
    return SH_OK;
}

sh_status Device::event_create(bool timing, sh_backend_event* out_event) {
    const uint64_t handle = next_handle.fetch_add(1, std::memory_order_relaxed);
    std::lock_guard lock(mutex_);
    events_.emplace(handle, Event{timing, false, 0});
    *out_event = handle;
    return SH_OK;
}

sh_status Device::event_destroy(sh_backend_event handle) {
    std::lock_guard lock(mutex_);
    Event* event = nullptr;
    if (sh_status status = find_event(handle, &event); status < 0) return status;
    events_.erase(handle);
    return SH_OK;
}

sh_status Device::event_record(sh_backend_event event_handle, sh_stream stream_handle) {
    std::lock_guard lock(mutex_);
    Stream* stream = nullptr;
    Event* event = nullptr;
    if (sh_status status = find_stream(stream_handle, &stream); status < 0) return status;
    if (sh_status status = find_event(event_handle, &event); status < 0) return status;
    event->at_ns = ready_ns(*stream);
    event->recorded = true;
    return SH_OK;
}

sh_status Device::event_query(sh_backend_event handle, uint32_t* out_done) {
    std::lock_guard lock(mutex_);
    Event* event = nullptr;
    if (sh_status status = find_event(handle, &event); status < 0) return status;
    *out_done = !event->recorded || event->at_ns <= now_ns_;
    return SH_OK;
}

sh_status Device::event_synchronize(sh_backend_event handle) {
    std::lock_guard lock(mutex_);
    Event* event = nullptr;
    if (sh_status status = find_event(handle, &event); status < 0) return status;
    if (event->recorded) now_ns_ = std::max(now_ns_, event->at_ns);
    return SH_OK;
}

sh_status Device::event_elapsed(sh_backend_event begin_handle, sh_backend_event end_handle, int64_t* out_ns) {
    std::lock_guard lock(mutex_);
    Event *begin = nullptr, *end = nullptr;
    if (sh_status status = find_event(begin_handle, &begin); status < 0) return status;
    if (sh_status status = find_event(end_handle, &end); status < 0) return status;
    if (!begin->timing || !end->timing) return fail(SH_ERROR_INVALID_ARGUMENT, "an event was created without timing");
    if (!begin->recorded || !end->recorded) return fail(SH_ERROR_INVALID_STATE, "an event was never recorded");
    if (std::max(begin->at_ns, end->at_ns) > now_ns_)
        return fail(SH_ERROR_INVALID_STATE, "an event has not happened yet");
    *out_ns = static_cast<int64_t>(end->at_ns - begin->at_ns);
    return SH_OK;
}

sh_status Device::copy(sh_stream handle, Direction direction, uint64_t address, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    Stream* stream = nullptr;
    if (sh_status status = find_stream(handle, &stream); status < 0) return status;
    if (sh_status status = table_.check_mapped(address, bytes); status < 0) return status;
    const uint64_t ready = ready_ns(*stream);  // this call moves the clock
    stream->busy_until_ns = links_.copy(direction, now_ns_, ready, bytes);
    return SH_OK;
}

// Device memory is much faster than any link, so only the latency counts.
sh_status Device::copy_on_device(sh_stream handle, uint64_t to, uint64_t from, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    Stream* stream = nullptr;
    if (sh_status status = find_stream(handle, &stream); status < 0) return status;
    if (sh_status status = table_.check_mapped(to, bytes); status < 0) return status;
    if (sh_status status = table_.check_mapped(from, bytes); status < 0) return status;
    stream->busy_until_ns = ready_ns(*stream) + settings_.latency_ns;
    return SH_OK;
}

sh_status Device::fill(sh_stream handle, uint64_t to, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    Stream* stream = nullptr;
    if (sh_status status = find_stream(handle, &stream); status < 0) return status;
    if (sh_status status = table_.check_mapped(to, bytes); status < 0) return status;
    stream->busy_until_ns = ready_ns(*stream) + settings_.latency_ns;
    return SH_OK;
}

sh_status Device::unpack(sh_stream handle, const sh_backend_packed& packed) {
    if (sh_status status = support::check_packed(packed); status < 0) return status;
    const uint64_t bytes = support::unpacked_bytes(packed);
    std::lock_guard lock(mutex_);
    Stream* stream = nullptr;
    if (sh_status status = find_stream(handle, &stream); status < 0) return status;
    const uint64_t from = packed.from + uint64_t(packed.places[0]) * 16;
    if (sh_status status = table_.check_mapped(from, support::packed_bytes(packed)); status < 0) return status;
    if (sh_status status = table_.check_mapped(packed.to, bytes); status < 0) return status;
    if (sh_status status = packed.failed ? table_.check_mapped(packed.failed, 4) : SH_OK; status < 0) return status;
    const double ns = static_cast<double>(bytes) * 1e9 / static_cast<double>(settings_.unpack_speed);
    stream->busy_until_ns = ready_ns(*stream) + settings_.latency_ns + static_cast<uint64_t>(ns);
    return SH_OK;
}

}  // namespace stagehand::sim
