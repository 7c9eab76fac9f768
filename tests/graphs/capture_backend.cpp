// A backend for tests. It wraps the host backend and adds graphs with the rules of real drivers (recorder.h).
#include "capture.h"

#include <atomic>
#include <memory>

#include "recorder.h"
#include "support/last_error.h"

namespace {

using stagehand::support::fail;
using stagehand::support::guarded;
using stagehand::test::Answer;
using stagehand::test::CaptureMode;
using Kind = stagehand::test::Recording::Kind;

struct Device {
    const sh_backend* host = nullptr;
    sh_backend_device* inner = nullptr;
    std::atomic<uint64_t> events{0};
};

const sh_backend_host* services = nullptr;
stagehand::test::Recorder recorder;
Device* first = nullptr;  // device 0, which captures

Device& of(sh_backend_device* handle) { return *reinterpret_cast<Device*>(handle); }

sh_status told(const Device& device, sh_status status) {
    return status < 0 ? fail(status, "%s", device.host->last_error()) : status;
}
sh_status refused(Answer answer) { return fail(SH_ERROR_BACKEND, "%s", text_of(answer)); }

// Passes a call on, unless a capture takes or forbids the call.
template <class Pass>
sh_status unless(Device& device, Answer answer, Pass&& pass_on) {
    if (is_refusal(answer)) return refused(answer);
    return answer == Answer::noted ? SH_OK : told(device, pass_on());
}

// Queues a command, or makes a capture record it. The function allocates its own memory here, and nothing after that
// throws.
template <class Replay>
sh_status queue(sh_backend_device* handle, sh_stream stream, Kind kind, const Replay& replay) {
    return guarded([&]() -> sh_status {
        Device& device = of(handle);
        const Answer answer = recorder.note(device.inner, stream, kind, replay);
        return unless(device, answer, [&] { return replay(*device.host, device.inner, stream); });
    });
}

sh_status stream_synchronize(sh_backend_device* handle, sh_stream stream) {
    Device& device = of(handle);
    return unless(device, recorder.synchronize(stream),
                  [&] { return device.host->stream_synchronize(device.inner, stream); });
}

sh_status device_synchronize(sh_backend_device* handle) {
    Device& device = of(handle);
    return told(device, device.host->device_synchronize(device.inner));
}

sh_status contents_hash(sh_backend_device* handle, sh_stream stream, uint64_t count, const sh_backend_range* ranges,
                        sh_backend_digest* out_digests) {
    Device& device = of(handle);
    return told(device, device.host->contents_hash(device.inner, stream, count, ranges, out_digests));
}

sh_status event_record(sh_backend_device* handle, sh_backend_event event, sh_stream stream) {
    return guarded([&] {
        if (!event) return fail(SH_ERROR_INVALID_HANDLE, "0 is never an event");  // a capture would take it
        Device& device = of(handle);
        return unless(device, recorder.record(device.inner, stream, event),
                      [&] { return device.host->event_record(device.inner, event, stream); });
    });
}

sh_status stream_wait_event(sh_backend_device* handle, sh_stream stream, sh_backend_event event) {
    return guarded([&] {
        Device& device = of(handle);
        return unless(device, recorder.wait(device.inner, stream, event),
                      [&] { return device.host->stream_wait_event(device.inner, stream, event); });
    });
}

sh_status event_query(sh_backend_device* handle, sh_backend_event event, uint32_t* out_done) {
    Device& device = of(handle);
    return unless(device, recorder.ask(event), [&] { return device.host->event_query(device.inner, event, out_done); });
}

sh_status event_synchronize(sh_backend_device* handle, sh_backend_event event) {
    Device& device = of(handle);
    return unless(device, recorder.ask(event), [&] { return device.host->event_synchronize(device.inner, event); });
}

sh_status event_create(sh_backend_device* handle, uint32_t timing, sh_backend_event* event) {
    Device& device = of(handle);
    const sh_status status = device.host->event_create(device.inner, timing, event);
    if (status == SH_OK) device.events++;
    return told(device, status);
}

sh_status event_destroy(sh_backend_device* handle, sh_backend_event event) {
    Device& device = of(handle);
    recorder.forget(event);
    const sh_status status = device.host->event_destroy(device.inner, event);
    if (status == SH_OK) device.events--;
    return told(device, status);
}

sh_status copy_to_device(sh_backend_device* handle, sh_stream stream, uint64_t to, const void* from, uint64_t bytes) {
    return queue(handle, stream, Kind::copy, [=](const sh_backend& host, sh_backend_device* inner, sh_stream own) {
        return host.copy_to_device(inner, own, to, from, bytes);
    });
}

sh_status copy_to_host(sh_backend_device* handle, sh_stream stream, void* to, uint64_t from, uint64_t bytes) {
    return queue(handle, stream, Kind::other, [=](const sh_backend& host, sh_backend_device* inner, sh_stream own) {
        return host.copy_to_host(inner, own, to, from, bytes);
    });
}

sh_status copy_on_device(sh_backend_device* handle, sh_stream stream, uint64_t to, uint64_t from, uint64_t bytes) {
    return queue(handle, stream, Kind::other, [=](const sh_backend& host, sh_backend_device* inner, sh_stream own) {
        return host.copy_on_device(inner, own, to, from, bytes);
    });
}

sh_status unpack(sh_backend_device* handle, sh_stream stream, const sh_backend_packed* packed) {
    const sh_backend_packed copy = *packed;
    return queue(handle, stream, Kind::other, [=](const sh_backend& host, sh_backend_device* inner, sh_stream own) {
        return host.unpack(inner, own, &copy);
    });
}

sh_status pack_tiles(sh_backend_device* handle, sh_stream stream, const sh_backend_tiles* tiles) {
    const sh_backend_tiles copy = *tiles;
    return queue(handle, stream, Kind::other, [=](const sh_backend& host, sh_backend_device* inner, sh_stream own) {
        return host.pack_tiles(inner, own, &copy);
    });
}

sh_status unpack_tiles(sh_backend_device* handle, sh_stream stream, const sh_backend_tiles* tiles) {
    const sh_backend_tiles copy = *tiles;
    return queue(handle, stream, Kind::other, [=](const sh_backend& host, sh_backend_device* inner, sh_stream own) {
        return host.unpack_tiles(inner, own, &copy);
    });
}

sh_status fill(sh_backend_device* handle, sh_stream stream, uint64_t to, uint8_t value, uint64_t bytes) {
    return queue(handle, stream, Kind::other, [=](const sh_backend& host, sh_backend_device* inner, sh_stream own) {
        return host.fill(inner, own, to, value, bytes);
    });
}

sh_status stream_launch(sh_backend_device* handle, sh_stream stream, void (*fn)(void*), void* data, int64_t busy_ns) {
    return queue(handle, stream, Kind::launch, [=](const sh_backend& host, sh_backend_device* inner, sh_stream own) {
        return host.stream_launch(inner, own, fn, data, busy_ns);
    });
}

sh_status stream_is_capturing(sh_backend_device*, sh_stream stream, uint32_t* out_capturing) {
    *out_capturing = recorder.takes_part(stream);
    return SH_OK;
}

#define PASS(name, parameters, ...)                                        \
    sh_status name parameters {                                            \
        Device& device = of(handle);                                       \
        return told(device, device.host->name(device.inner, __VA_ARGS__)); \
    }
PASS(memory_info, (sh_backend_device * handle, uint64_t* out_free, uint64_t* out_total), out_free, out_total)
PASS(pages_create, (sh_backend_device * handle, uint64_t page_bytes, uint64_t count, sh_backend_page* pages),
     page_bytes, count, pages)
PASS(pages_destroy, (sh_backend_device * handle, uint64_t page_bytes, uint64_t count, const sh_backend_page* pages),
     page_bytes, count, pages)
PASS(range_reserve, (sh_backend_device * handle, uint64_t bytes, uint64_t alignment, uint64_t* address), bytes,
     alignment, address)
PASS(range_free, (sh_backend_device * handle, uint64_t address, uint64_t bytes), address, bytes)
PASS(pages_map,
     (sh_backend_device * handle, uint64_t address, uint64_t page_bytes, uint64_t count, const sh_backend_page* pages),
     address, page_bytes, count, pages)
PASS(pages_unmap, (sh_backend_device * handle, uint64_t address, uint64_t page_bytes, uint64_t count), address,
     page_bytes, count)
PASS(host_register, (sh_backend_device * handle, void* memory, uint64_t bytes), memory, bytes)
PASS(host_unregister, (sh_backend_device * handle, void* memory), memory)
PASS(host_is_pinned, (sh_backend_device * handle, const void* memory, uint64_t bytes, uint32_t* pinned), memory, bytes,
     pinned)
PASS(memory_is_reachable, (sh_backend_device * handle, uint64_t address, uint64_t bytes, uint32_t* out_reachable),
     address, bytes, out_reachable)
PASS(stream_create, (sh_backend_device * handle, sh_stream* stream), stream)
PASS(stream_destroy, (sh_backend_device * handle, sh_stream stream), stream)
PASS(event_elapsed, (sh_backend_device * handle, sh_backend_event begin, sh_backend_event end, int64_t* ns), begin, end,
     ns)

sh_status probe(uint32_t* out_count) {
    *out_count = 2;
    return SH_OK;
}

sh_status device_open(uint32_t index, const char* options, sh_backend_device** out_device,
                      sh_backend_device_info* out_info) {
    return guarded([&]() -> sh_status {
        auto device = std::make_unique<Device>();
        if (const sh_status status = services->find_backend("host", &device->host); status < 0)
            return fail(status, "there is no host backend");
        if (const sh_status status = device->host->device_open(index, options, &device->inner, out_info); status < 0)
            return told(*device, status);
        if (index == 0) first = device.get();
        *out_device = reinterpret_cast<sh_backend_device*>(device.release());
        return SH_OK;
    });
}

void device_close(sh_backend_device* handle) {
    const std::unique_ptr<Device> device(&of(handle));
    device->host->device_close(device->inner);
    if (device.get() == first) first = nullptr;
}

sh_backend make_table() {
    sh_backend table = {};
    table.struct_size = sizeof table;
    table.spi_version = SH_BACKEND_SPI_VERSION;
    table.name = "capture";
    table.version = "0.1";
    table.last_error = stagehand::support::last_error;
#define MEMBER(name) table.name = name
    MEMBER(probe);
    MEMBER(device_open);
    MEMBER(device_close);
    MEMBER(memory_info);
    MEMBER(pages_create);
    MEMBER(pages_destroy);
    MEMBER(range_reserve);
    MEMBER(range_free);
    MEMBER(pages_map);
    MEMBER(pages_unmap);
    MEMBER(host_register);
    MEMBER(host_unregister);
    MEMBER(host_is_pinned);
    MEMBER(stream_create);
    MEMBER(stream_destroy);
    MEMBER(stream_synchronize);
    MEMBER(stream_wait_event);
    MEMBER(stream_launch);
    MEMBER(event_create);
    MEMBER(event_destroy);
    MEMBER(event_record);
    MEMBER(event_query);
    MEMBER(event_synchronize);
    MEMBER(event_elapsed);
    MEMBER(copy_to_device);
    MEMBER(copy_to_host);
    MEMBER(copy_on_device);
    MEMBER(fill);
    MEMBER(stream_is_capturing);
    MEMBER(device_synchronize);
    MEMBER(contents_hash);
    MEMBER(unpack);
    MEMBER(pack_tiles);
    MEMBER(unpack_tiles);
    MEMBER(memory_is_reachable);
    return table;
}

}  // namespace

struct sh_test_graph {
    std::shared_ptr<const stagehand::test::Recording> recording;
    stagehand::test::Instance instance;
};

extern "C" {

SH_API sh_status sh_backend_query(uint32_t spi_version, const sh_backend_host* host, const sh_backend** out_backend) {
    if (spi_version != SH_BACKEND_SPI_VERSION) return SH_ERROR_UNSUPPORTED;
    services = host;
    static const sh_backend table = make_table();
    *out_backend = &table;
    return SH_OK;
}

// The backend's own calls count as calls in the relaxed mode, like those of plugins, so captures do not forbid them.
sh_status sh_test_capture_begin(sh_stream stream) {
    const Answer answer = recorder.begin(first->inner, stream, CaptureMode::global);
    return is_refusal(answer) ? refused(answer) : SH_OK;
}

sh_status sh_test_follow(sh_stream stream, sh_stream other) {
    auto* const device = reinterpret_cast<sh_backend_device*>(first);
    sh_backend_event event = 0;
    if (const sh_status status = event_create(device, 0, &event); status < 0) return status;
    sh_status status = event_record(device, event, other);
    if (status >= 0) status = stream_wait_event(device, stream, event);
    const sh_status destroyed = event_destroy(device, event);
    return status < 0 ? status : destroyed;
}

sh_status sh_test_capture_end(sh_stream stream, sh_test_graph** out_graph) {
    std::shared_ptr<const stagehand::test::Recording> recording;
    const Answer answer = recorder.end(stream, &recording);
    if (is_refusal(answer)) return refused(answer);
    *out_graph = new sh_test_graph{recording, {*first->host, recording}};
    return SH_OK;
}

sh_status sh_test_graph_launch(sh_test_graph* graph, sh_stream stream) { return graph->instance.launch(stream); }

void sh_test_graph_destroy(sh_test_graph* graph) { delete graph; }

void sh_test_graph_count(sh_test_graph* graph, uint64_t* out_commands, uint64_t* out_copies) {
    *out_commands = graph->recording->commands.size();
    *out_copies = graph->recording->copies();
}

uint64_t sh_test_events(void) { return first->events; }

const char* sh_test_capture_error(void) { return stagehand::support::last_error(); }
}
