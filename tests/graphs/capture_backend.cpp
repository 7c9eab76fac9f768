// A backend for tests: it wraps the host's and adds graphs, with the rules that drivers have. In a capture commands are noted instead
// of queued; streams join through events; waiting for what was recorded outside, asking or waiting for what is only captured, and
// ending while a stream is not joined invalidate it.
#include "capture.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "support/last_error.h"

namespace {

using stagehand::support::fail;
using stagehand::support::guarded;

struct Command {
    enum Kind { copy, launch, record, wait } kind;
    size_t stream;            // among the graph's
    uint64_t to = 0;
    const void* from = nullptr;
    uint64_t bytes = 0;
    void (*fn)(void*) = nullptr;
    void* data = nullptr;
    int64_t busy_ns = 0;
    size_t record_of = 0;     // of a wait: the command that recorded
};

struct Capture {
    std::vector<sh_stream> streams;   // the first is where it began
    std::vector<Command> commands;
    std::vector<bool> joined;         // per stream: another has waited for its last command
    std::string problem;              // not empty: invalidated
    bool over = false;
};

struct Captured {   // an event's last record
    std::shared_ptr<Capture> capture;
    size_t command = 0;
};

struct Device {
    const sh_backend* host = nullptr;
    sh_backend_device* inner = nullptr;
    std::recursive_mutex mutex;
    std::map<sh_stream, std::shared_ptr<Capture>> capturing;
    std::map<sh_backend_event, Captured> captured;
};

const sh_backend_host* services = nullptr;
Device* latest = nullptr;   // tests open one

Device& of(sh_backend_device* handle) { return *reinterpret_cast<Device*>(handle); }

sh_status told(const Device& device, sh_status status) { return status < 0 ? fail(status, "%s", device.host->last_error()) : status; }

sh_status refuse(Capture& capture, const char* problem) {
    capture.problem = problem;
    return fail(SH_ERROR_BACKEND, "%s", problem);
}

// The capture that a stream takes part in; null: none.
std::shared_ptr<Capture> capture_of(Device& device, sh_stream stream) {
    const auto found = device.capturing.find(stream);
    return found == device.capturing.end() ? nullptr : found->second;
}

size_t place(Capture& capture, sh_stream stream) {
    for (size_t i = 0; i < capture.streams.size(); i++)
        if (capture.streams[i] == stream) return i;
    capture.streams.push_back(stream);
    capture.joined.push_back(true);
    return capture.streams.size() - 1;
}

size_t note(Capture& capture, sh_stream stream, Command command) {
    command.stream = place(capture, stream);
    capture.joined[command.stream] = false;
    capture.commands.push_back(command);
    return capture.commands.size() - 1;
}

// Passes a call on, or has it noted.
template <class Pass, class Note>
sh_status pass(sh_backend_device* handle, sh_stream stream, Pass&& pass_on, Note&& noted) {
    return guarded([&]() -> sh_status {
        Device& device = of(handle);
        std::lock_guard lock(device.mutex);
        if (const auto capture = capture_of(device, stream)) return noted(device, *capture);
        return told(device, pass_on(device));
    });
}

sh_status stream_synchronize(sh_backend_device* handle, sh_stream stream) {
    Device& device = of(handle);
    {
        std::lock_guard lock(device.mutex);
        if (const auto capture = capture_of(device, stream)) return refuse(*capture, "a stream that captures cannot be waited for");
    }
    return told(device, device.host->stream_synchronize(device.inner, stream));
}

sh_status event_record(sh_backend_device* handle, sh_backend_event event, sh_stream stream) {
    return pass(
        handle, stream,
        [&](Device& device) {
            device.captured.erase(event);
            return device.host->event_record(device.inner, event, stream);
        },
        [&](Device& device, Capture& capture) {
            const size_t command = note(capture, stream, {.kind = Command::record, .stream = 0});
            device.captured[event] = {device.capturing[stream], command};
            return SH_OK;
        });
}

sh_status stream_wait_event(sh_backend_device* handle, sh_stream stream, sh_backend_event event) {
    return guarded([&]() -> sh_status {
        Device& device = of(handle);
        std::lock_guard lock(device.mutex);
        const auto capture = capture_of(device, stream);
        const auto found = device.captured.find(event);
        if (found == device.captured.end()) {
            if (capture) return refuse(*capture, "a captured stream waits for an event from outside its capture");
            return told(device, device.host->stream_wait_event(device.inner, stream, event));
        }
        const Captured& recorded = found->second;
        if (recorded.capture->over) return fail(SH_ERROR_BACKEND, "a stream waits for an event that was recorded in a capture");
        if (capture && capture != recorded.capture) return refuse(*capture, "a captured stream waits for an event of another capture");
        Capture& into = *recorded.capture;
        device.capturing[stream] = recorded.capture;
        Command command = {.kind = Command::wait, .stream = 0};
        command.record_of = recorded.command;
        // The stream that recorded is joined if nothing came after the record.
        const size_t from = into.commands[recorded.command].stream;
        bool last = true;
        for (size_t i = recorded.command + 1; i < into.commands.size(); i++) last &= into.commands[i].stream != from;
        note(into, stream, command);
        if (last && from != place(into, stream)) into.joined[from] = true;
        return SH_OK;
    });
}

// Whether an event is one that only a capture knows.
bool only_captured(Device& device, sh_backend_event event) {
    std::lock_guard lock(device.mutex);
    const auto found = device.captured.find(event);
    if (found == device.captured.end()) return false;
    found->second.capture->problem = "an event of a capture was asked for or waited for";
    return true;
}

sh_status event_query(sh_backend_device* handle, sh_backend_event event, uint32_t* out_done) {
    Device& device = of(handle);
    if (only_captured(device, event)) return fail(SH_ERROR_BACKEND, "the event was recorded in a capture");
    return told(device, device.host->event_query(device.inner, event, out_done));
}

sh_status event_synchronize(sh_backend_device* handle, sh_backend_event event) {
    Device& device = of(handle);
    if (only_captured(device, event)) return fail(SH_ERROR_BACKEND, "the event was recorded in a capture");
    return told(device, device.host->event_synchronize(device.inner, event));
}

sh_status event_destroy(sh_backend_device* handle, sh_backend_event event) {
    Device& device = of(handle);
    {
        std::lock_guard lock(device.mutex);
        device.captured.erase(event);
    }
    return told(device, device.host->event_destroy(device.inner, event));
}

sh_status copy_to_device(sh_backend_device* handle, sh_stream stream, uint64_t to, const void* from, uint64_t bytes) {
    return pass(
        handle, stream, [&](Device& device) { return device.host->copy_to_device(device.inner, stream, to, from, bytes); },
        [&](Device&, Capture& capture) {
            note(capture, stream, {.kind = Command::copy, .stream = 0, .to = to, .from = from, .bytes = bytes});
            return SH_OK;
        });
}

sh_status stream_launch(sh_backend_device* handle, sh_stream stream, void (*fn)(void*), void* data, int64_t busy_ns) {
    return pass(
        handle, stream, [&](Device& device) { return device.host->stream_launch(device.inner, stream, fn, data, busy_ns); },
        [&](Device&, Capture& capture) {
            Command command = {.kind = Command::launch, .stream = 0};
            command.fn = fn;
            command.data = data;
            command.busy_ns = busy_ns;
            note(capture, stream, command);
            return SH_OK;
        });
}

sh_status stream_is_capturing(sh_backend_device* handle, sh_stream stream, uint32_t* out_capturing) {
    Device& device = of(handle);
    std::lock_guard lock(device.mutex);
    *out_capturing = device.capturing.count(stream) != 0;
    return SH_OK;
}

#define PASS(name, parameters, ...)                                    \
    sh_status name parameters {                                        \
        Device& device = of(handle);                                   \
        return told(device, device.host->name(device.inner, __VA_ARGS__)); \
    }
PASS(memory_info, (sh_backend_device * handle, uint64_t* out_free, uint64_t* out_total), out_free, out_total)
PASS(pages_create, (sh_backend_device * handle, uint64_t page_bytes, uint64_t count, sh_backend_page* pages), page_bytes, count, pages)
PASS(pages_destroy, (sh_backend_device * handle, uint64_t page_bytes, uint64_t count, const sh_backend_page* pages), page_bytes, count, pages)
PASS(range_reserve, (sh_backend_device * handle, uint64_t bytes, uint64_t alignment, uint64_t* address), bytes, alignment, address)
PASS(range_free, (sh_backend_device * handle, uint64_t address, uint64_t bytes), address, bytes)
PASS(pages_map, (sh_backend_device * handle, uint64_t address, uint64_t page_bytes, uint64_t count, const sh_backend_page* pages), address,
     page_bytes, count, pages)
PASS(pages_unmap, (sh_backend_device * handle, uint64_t address, uint64_t page_bytes, uint64_t count), address, page_bytes, count)
PASS(host_register, (sh_backend_device * handle, void* memory, uint64_t bytes), memory, bytes)
PASS(host_unregister, (sh_backend_device * handle, void* memory), memory)
PASS(host_is_pinned, (sh_backend_device * handle, const void* memory, uint64_t bytes, uint32_t* pinned), memory, bytes, pinned)
PASS(stream_create, (sh_backend_device * handle, sh_stream* stream), stream)
PASS(stream_destroy, (sh_backend_device * handle, sh_stream stream), stream)
PASS(event_create, (sh_backend_device * handle, uint32_t timing, sh_backend_event* event), timing, event)
PASS(event_elapsed, (sh_backend_device * handle, sh_backend_event begin, sh_backend_event end, int64_t* ns), begin, end, ns)
PASS(copy_to_host, (sh_backend_device * handle, sh_stream stream, void* to, uint64_t from, uint64_t bytes), stream, to, from, bytes)
PASS(copy_on_device, (sh_backend_device * handle, sh_stream stream, uint64_t to, uint64_t from, uint64_t bytes), stream, to, from, bytes)
PASS(fill, (sh_backend_device * handle, sh_stream stream, uint64_t to, uint8_t value, uint64_t bytes), stream, to, value, bytes)

sh_status probe(uint32_t* out_count) {
    *out_count = 1;
    return SH_OK;
}

sh_status device_open(uint32_t, const char* options, sh_backend_device** out_device, sh_backend_device_info* out_info) {
    return guarded([&]() -> sh_status {
        auto device = std::make_unique<Device>();
        if (const sh_status status = services->find_backend("host", &device->host); status < 0) return fail(status, "there is no host backend");
        if (const sh_status status = device->host->device_open(0, options, &device->inner, out_info); status < 0) return told(*device, status);
        latest = device.release();
        *out_device = reinterpret_cast<sh_backend_device*>(latest);
        return SH_OK;
    });
}

void device_close(sh_backend_device* handle) {
    const std::unique_ptr<Device> device(&of(handle));
    device->host->device_close(device->inner);
    latest = nullptr;
}

sh_backend make_table() {
    sh_backend table = {};
    table.struct_size = sizeof table;
    table.spi_version = SH_BACKEND_SPI_VERSION;
    table.name = "capture";
    table.version = "0.1";
    table.last_error = stagehand::support::last_error;
#define MEMBER(name) table.name = name
    MEMBER(probe); MEMBER(device_open); MEMBER(device_close); MEMBER(memory_info); MEMBER(pages_create); MEMBER(pages_destroy);
    MEMBER(range_reserve); MEMBER(range_free); MEMBER(pages_map); MEMBER(pages_unmap); MEMBER(host_register); MEMBER(host_unregister);
    MEMBER(host_is_pinned); MEMBER(stream_create); MEMBER(stream_destroy); MEMBER(stream_synchronize); MEMBER(stream_wait_event);
    MEMBER(stream_launch); MEMBER(event_create); MEMBER(event_destroy); MEMBER(event_record); MEMBER(event_query);
    MEMBER(event_synchronize); MEMBER(event_elapsed); MEMBER(copy_to_device); MEMBER(copy_to_host); MEMBER(copy_on_device); MEMBER(fill);
    MEMBER(stream_is_capturing);
    return table;
}

}  // namespace

struct sh_test_graph {
    Device* device = nullptr;
    std::shared_ptr<Capture> capture;
    std::vector<sh_stream> streams;             // of the wrapped backend, one for each of the capture's
    std::map<size_t, sh_backend_event> events;  // of each record
    sh_backend_event begin = 0;
    std::vector<sh_backend_event> ends;
};

extern "C" {

SH_API sh_status sh_backend_query(uint32_t spi_version, const sh_backend_host* host, const sh_backend** out_backend) {
    if (spi_version != SH_BACKEND_SPI_VERSION) return SH_ERROR_UNSUPPORTED;
    services = host;
    static const sh_backend table = make_table();
    *out_backend = &table;
    return SH_OK;
}

sh_status sh_test_capture_begin(sh_stream stream) {
    std::lock_guard lock(latest->mutex);
    auto capture = std::make_shared<Capture>();
    place(*capture, stream);
    latest->capturing[stream] = std::move(capture);
    return SH_OK;
}

sh_status sh_test_capture_end(sh_stream stream, sh_test_graph** out_graph) {
    Device& device = *latest;
    std::lock_guard lock(device.mutex);
    const auto capture = capture_of(device, stream);
    if (!capture || capture->streams[0] != stream) return fail(SH_ERROR_INVALID_STATE, "no capture began on this stream");
    capture->over = true;
    std::erase_if(device.capturing, [&](const auto& entry) { return entry.second == capture; });
    for (size_t i = 1; i < capture->streams.size(); i++)
        if (!capture->joined[i] && capture->problem.empty()) capture->problem = "a stream was not joined";
    if (!capture->problem.empty()) return fail(SH_ERROR_BACKEND, "%s", capture->problem.c_str());
    auto graph = std::make_unique<sh_test_graph>();
    graph->device = &device;
    graph->capture = capture;
    graph->streams.resize(capture->streams.size());
    graph->ends.resize(capture->streams.size());
    for (sh_stream& own : graph->streams) device.host->stream_create(device.inner, &own);
    for (sh_backend_event& end : graph->ends) device.host->event_create(device.inner, 0, &end);
    device.host->event_create(device.inner, 0, &graph->begin);
    for (size_t i = 0; i < capture->commands.size(); i++)
        if (capture->commands[i].kind == Command::record) device.host->event_create(device.inner, 0, &graph->events[i]);
    *out_graph = graph.release();
    return SH_OK;
}

sh_status sh_test_graph_launch(sh_test_graph* graph, sh_stream stream) {
    Device& device = *graph->device;
    const sh_backend& host = *device.host;
    std::lock_guard lock(device.mutex);
    sh_status worst = host.event_record(device.inner, graph->begin, stream);
    const auto also = [&](sh_status status) { worst = worst < 0 ? worst : status; };
    for (const sh_stream own : graph->streams) also(host.stream_wait_event(device.inner, own, graph->begin));
    for (size_t i = 0; i < graph->capture->commands.size(); i++) {
        const Command& command = graph->capture->commands[i];
        const sh_stream own = graph->streams[command.stream];
        switch (command.kind) {
        case Command::copy: also(host.copy_to_device(device.inner, own, command.to, command.from, command.bytes)); break;
        case Command::launch: also(host.stream_launch(device.inner, own, command.fn, command.data, command.busy_ns)); break;
        case Command::record: also(host.event_record(device.inner, graph->events[i], own)); break;
        case Command::wait: also(host.stream_wait_event(device.inner, own, graph->events[command.record_of])); break;
        }
    }
    for (size_t i = 0; i < graph->streams.size(); i++) {
        also(host.event_record(device.inner, graph->ends[i], graph->streams[i]));
        also(host.stream_wait_event(device.inner, stream, graph->ends[i]));
    }
    return worst;
}

void sh_test_graph_destroy(sh_test_graph* graph) {
    Device& device = *graph->device;
    for (const sh_stream own : graph->streams) {
        device.host->stream_synchronize(device.inner, own);
        device.host->stream_destroy(device.inner, own);
    }
    for (const sh_backend_event end : graph->ends) device.host->event_destroy(device.inner, end);
    for (const auto& [command, event] : graph->events) device.host->event_destroy(device.inner, event);
    device.host->event_destroy(device.inner, graph->begin);
    delete graph;
}

void sh_test_graph_count(sh_test_graph* graph, uint64_t* out_commands, uint64_t* out_copies) {
    *out_commands = graph->capture->commands.size();
    *out_copies = 0;
    for (const Command& command : graph->capture->commands) *out_copies += command.kind == Command::copy;
}

const char* sh_test_capture_error(void) { return stagehand::support::last_error(); }
}
