#include "host/device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>

#include "base/plain_format.h"
#include "host/neighbours.h"
#include "support/device_info.h"
#include "support/last_error.h"

namespace stagehand::host {
namespace {

using support::fail;

std::atomic<uint64_t> handles{0x1000};

// Of all devices, because their streams may wait for the events of neighbours. Never destroyed.
RecordPool& records() {
    static RecordPool* const instance = new RecordPool;
    return *instance;
}

}  // namespace

// One counter serves every kind and device.
template <class Object>
std::atomic<uint64_t>& LiveSet<Object>::next_handle() {
    return handles;
}

Device::Device(const Settings& settings)
    : settings_(settings), memory_(settings), pinned_(settings.pin_limit_bytes), pacing_(settings) {}

Device::~Device() {
    // A stream may wait for an event of another stream, so all events must live until the last stream has stopped.
    for (auto& [handle, stream] : streams_.clear()) stream->stop();
    events_.clear();
}

void Device::describe(sh_backend_device_info* out) const {
    sh_backend_device_info info = {};
    info.kind = SH_DEVICE_KIND_HOST;
    info.flags = SH_BACKEND_HOST_ADDRESSABLE | SH_BACKEND_PEERS | (maps_pages() ? SH_BACKEND_FIXED_ADDRESSES : 0);
    plain_format(info.description, sizeof info.description, "host memory, %" PRIu64 " MiB%s",
                 settings_.capacity_bytes >> 20, settings_.bandwidth ? ", paced" : "");
    info.total_bytes = settings_.capacity_bytes;
    info.granularity_bytes = settings_.granularity_bytes;
    info.largest_page_bytes = settings_.largest_page_bytes;
    info.staging_piece_bytes = settings_.staging_piece_bytes;
    info.link_bytes_per_second = settings_.bandwidth;
    info.copy_latency_ns = settings_.latency_ns ? settings_.latency_ns : 5000;  // the time to wake the stream's thread
    info.queue_depth = INT32_MAX;  // the queue grows, so a call never waits
    info.largest_handle_bytes = settings_.largest_handle_bytes;
    support::give_info(info, out);
}

MemoryStatistics Device::statistics() const {
    MemoryStatistics result;
    memory_.statistics(&result);
    result.streams = streams_.size();
    result.events = events_.size();
    result.pinned_bytes = pinned_.bytes();
    return result;
}

// A driver refuses addresses without memory. A check at the first copy would be too late.
sh_status Device::pin(const void* memory, uint64_t bytes) {
    if (sh_status status = pinned_.add(memory, bytes); status < 0) return status;
    const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE)),
                   begin = reinterpret_cast<uint64_t>(memory) / page * page;
    const uint64_t length = reinterpret_cast<uint64_t>(memory) + bytes - begin;
    if (msync(reinterpret_cast<void*>(begin), length, MS_ASYNC) == 0) return SH_OK;
    pinned_.remove(memory);
    return fail(SH_ERROR_INVALID_ARGUMENT, "cannot pin %" PRIu64 " bytes at %p: a part of the range is not mapped",
                bytes, memory);
}

sh_status Device::find_stream(sh_stream handle, std::shared_ptr<Stream>* out) const {
    *out = streams_.find(handle);
    return *out ? SH_OK : fail(SH_ERROR_INVALID_HANDLE, "%#" PRIx64 " is not a stream of this device", handle);
}

sh_status Device::find_event(sh_backend_event handle, std::shared_ptr<Event>* out) const {
    *out = events_.find(handle);
    return *out ? SH_OK : fail(SH_ERROR_INVALID_HANDLE, "%#" PRIx64 " is not an event of this device", handle);
}

sh_status Device::stream_create(sh_stream* out_stream) {
    auto stream = std::make_shared<Stream>(pacing_, streams_made_.fetch_add(1, std::memory_order_relaxed));
    if (sh_status status = stream->start(); status < 0) return status;
    *out_stream = streams_.add(std::move(stream));
    return SH_OK;
}

sh_status Device::stream_destroy(sh_stream handle) {
    std::shared_ptr<Stream> stream;
    if (sh_status status = find_stream(handle, &stream); status < 0) return status;
    if (stream->is_current_thread())
        return fail(SH_ERROR_INVALID_STATE, "a stream cannot be destroyed by a callback that runs on it");
    if (!streams_.remove(handle))
        return fail(SH_ERROR_INVALID_HANDLE, "%#" PRIx64 " is a stream that is being destroyed", handle);
    stream->stop();
    return SH_OK;
}

sh_status Device::stream_synchronize(sh_stream handle) {
    std::shared_ptr<Stream> stream;
    if (sh_status status = find_stream(handle, &stream); status < 0) return status;
    stream->synchronize();
    return SH_OK;
}

void Device::synchronize() {
    for (const std::shared_ptr<Stream>& stream : streams_.all()) stream->synchronize();
}

sh_status Device::enqueue(sh_stream handle, Command&& command) {
    std::shared_ptr<Stream> stream;
    if (sh_status status = find_stream(handle, &stream); status < 0) return status;
    return stream->enqueue(std::move(command));
}

sh_status Device::stream_wait_event(sh_stream stream_handle, sh_backend_event event_handle) {
    std::shared_ptr<Stream> stream;
    std::shared_ptr<Event> event;
    if (sh_status status = find_stream(stream_handle, &stream); status < 0) return status;
    event = own_event(event_handle);
    if (!event) event = Neighbours::all().find_event(event_handle);
    if (!event) return fail(SH_ERROR_INVALID_HANDLE, "%#" PRIx64 " is not an event of a host device", event_handle);
    Command command;
    command.kind = Command::Kind::wait;
    command.record = event->latest();
    // No wait is needed for a completed record: its model time is past, and later commands start after it.
    if (!command.record || command.record->done()) return SH_OK;
    return stream->enqueue(std::move(command));
}

sh_status Device::event_create(bool timing, sh_backend_event* out_event) {
    *out_event = events_.add(std::make_shared<Event>(timing));
    return SH_OK;
}

sh_status Device::event_destroy(sh_backend_event handle) {
    if (!events_.remove(handle))
        return fail(SH_ERROR_INVALID_HANDLE, "%#" PRIx64 " is not an event of this device", handle);
    return SH_OK;
}

sh_status Device::event_record(sh_backend_event event_handle, sh_stream stream_handle) {
    std::shared_ptr<Stream> stream;
    std::shared_ptr<Event> event;
    if (sh_status status = find_stream(stream_handle, &stream); status < 0) return status;
    if (sh_status status = find_event(event_handle, &event); status < 0) return status;
    return event->record(records(), *stream);
}

sh_status Device::event_query(sh_backend_event handle, uint32_t* out_done) {
    std::shared_ptr<Event> event;
    if (sh_status status = find_event(handle, &event); status < 0) return status;
    const RecordPointer record = event->latest();
    *out_done = !record || record->done();
    return SH_OK;
}

sh_status Device::event_synchronize(sh_backend_event handle) {
    std::shared_ptr<Event> event;
    if (sh_status status = find_event(handle, &event); status < 0) return status;
    if (const RecordPointer record = event->latest()) record->wait();
    return SH_OK;
}

sh_status Device::event_elapsed(sh_backend_event begin_handle, sh_backend_event end_handle, int64_t* out_ns) {
    std::shared_ptr<Event> begin, end;
    if (sh_status status = find_event(begin_handle, &begin); status < 0) return status;
    if (sh_status status = find_event(end_handle, &end); status < 0) return status;
    if (!begin->timing() || !end->timing())
        return fail(SH_ERROR_INVALID_ARGUMENT, "an event was created without timing");
    const RecordPointer first = begin->latest(), last = end->latest();
    if (!first || !last) return fail(SH_ERROR_INVALID_STATE, "an event was never recorded");
    if (!first->done() || !last->done()) return fail(SH_ERROR_INVALID_STATE, "an event has not happened yet");
    *out_ns = static_cast<int64_t>(last->model_ns() - first->model_ns());
    return SH_OK;
}

}  // namespace stagehand::host
