#include "host/host_backend.h"

#include <atomic>
#include <cinttypes>
#include <memory>

#include "backend/functions.h"
#include "base/plain_format.h"
#include "host/device.h"
#include "host/neighbours.h"
#include "host/settings.h"
#include "support/content_hash.h"
#include "support/last_error.h"
#include "support/packed.h"
#include "support/version.h"

namespace stagehand::host {
namespace {

using support::fail;
using support::guarded;
using support::last_error;

Device& device_of(sh_backend_device* device) { return *reinterpret_cast<Device*>(device); }

constexpr uint32_t kDevices = 8;

std::atomic<const sh_backend_host*> services = nullptr;

sh_status probe(uint32_t* out_device_count) {
    *out_device_count = kDevices;
    return SH_OK;
}

sh_status device_open(uint32_t index, const char* options, sh_backend_device** out_device,
                      sh_backend_device_info* out_info) {
    return guarded([&]() -> sh_status {
        if (index >= kDevices)
            return fail(SH_ERROR_NOT_FOUND, "there is no host device %" PRIu32 ", only 0 to %" PRIu32, index,
                        kDevices - 1);
        Settings settings;
        if (sh_status status = read_settings(options, &settings); status < 0) return status;
        auto device = std::make_unique<Device>(settings);
        if (sh_status status = device->open(); status < 0) return status;
        device->describe(out_info);
        Neighbours::all().join(*device);
        *out_device = reinterpret_cast<sh_backend_device*>(device.release());
        return SH_OK;
    });
}

void device_close(sh_backend_device* handle) {
    Device* const device = reinterpret_cast<Device*>(handle);
    if (!device) return;
    Neighbours::all().leave(*device);
    const MemoryStatistics left = device->statistics();
    const sh_backend_host* const to = services.load();
    if (to && (left.pages || left.streams || left.events || left.pinned_bytes)) {
        char line[256];
        plain_format(line, sizeof line,
                     "the host device was closed, but %" PRIu64 " pages, %" PRIu64 " streams, %" PRIu64
                     " events and %" PRIu64 " pinned bytes were not given back",
                     left.pages, left.streams, left.events, left.pinned_bytes);
        to->log(SH_LOG_WARNING, line);
    }
    delete device;
}

sh_status memory_info(sh_backend_device* device, uint64_t* out_free, uint64_t* out_total) {
    device_of(device).memory().info(out_free, out_total);
    return SH_OK;
}

// Runs calls about pages, if the device maps pages.
template <class Body>
sh_status with_pages(sh_backend_device* device, Body&& body) {
    return guarded([&]() -> sh_status {
        if (!device_of(device).maps_pages())
            return fail(SH_ERROR_UNSUPPORTED, "the device does not map pages, because it was opened with map_pages=0");
        return body(device_of(device).memory());
    });
}

sh_status pages_create(sh_backend_device* device, uint64_t page_bytes, uint64_t count, sh_backend_page* out_pages) {
    return with_pages(device, [&](DeviceMemory& memory) { return memory.create(page_bytes, count, out_pages); });
}

sh_status pages_destroy(sh_backend_device* device, uint64_t page_bytes, uint64_t count, const sh_backend_page* pages) {
    return with_pages(device, [&](DeviceMemory& memory) { return memory.destroy(page_bytes, count, pages); });
}

sh_status range_reserve(sh_backend_device* device, uint64_t bytes, uint64_t alignment, uint64_t* out_address) {
    return guarded([&] {
        Device& host = device_of(device);
        return host.maps_pages() ? host.memory().reserve(bytes, alignment, out_address)
                                 : host.allocations().reserve(bytes, alignment, out_address);
    });
}

sh_status range_free(sh_backend_device* device, uint64_t address, uint64_t bytes) {
    return guarded([&] {
        Device& host = device_of(device);
        return host.maps_pages() ? host.memory().free(address, bytes) : host.allocations().free(address, bytes);
    });
}

sh_status pages_map(sh_backend_device* device, uint64_t address, uint64_t page_bytes, uint64_t count,
                    const sh_backend_page* pages) {
    return with_pages(device, [&](DeviceMemory& memory) { return memory.map(address, page_bytes, count, pages); });
}

sh_status pages_unmap(sh_backend_device* device, uint64_t address, uint64_t page_bytes, uint64_t count) {
    return with_pages(device, [&](DeviceMemory& memory) { return memory.unmap(address, page_bytes, count); });
}

sh_status host_register(sh_backend_device* device, void* memory, uint64_t bytes) {
    return guarded([&] { return device_of(device).pin(memory, bytes); });
}

sh_status host_unregister(sh_backend_device* device, void* memory) {
    return guarded([&] { return device_of(device).pinned().remove(memory); });
}

sh_status host_is_pinned(sh_backend_device* device, const void* memory, uint64_t bytes, uint32_t* out_pinned) {
    *out_pinned = device_of(device).pinned().contains(memory, bytes) || Neighbours::all().is_pinned(memory, bytes);
    return SH_OK;
}

sh_status stream_create(sh_backend_device* device, sh_stream* out_stream) {
    return guarded([&] { return device_of(device).stream_create(out_stream); });
}

sh_status stream_destroy(sh_backend_device* device, sh_stream stream) {
    return guarded([&] { return device_of(device).stream_destroy(stream); });
}

sh_status stream_synchronize(sh_backend_device* device, sh_stream stream) {
    return guarded([&] { return device_of(device).stream_synchronize(stream); });
}

sh_status stream_wait_event(sh_backend_device* device, sh_stream stream, sh_backend_event event) {
    return guarded([&] { return device_of(device).stream_wait_event(stream, event); });
}

sh_status stream_launch(sh_backend_device* device, sh_stream stream, void (*fn)(void*), void* user_data,
                        int64_t busy_ns) {
    return guarded([&] {
        Command command;
        command.kind = Command::Kind::launch;
        command.fn = fn;
        command.user_data = user_data;
        command.busy_ns = busy_ns;
        return device_of(device).enqueue(stream, std::move(command));
    });
}

sh_status event_create(sh_backend_device* device, uint32_t timing, sh_backend_event* out_event) {
    return guarded([&] { return device_of(device).event_create(timing != 0, out_event); });
}

sh_status event_destroy(sh_backend_device* device, sh_backend_event event) {
    return guarded([&] { return device_of(device).event_destroy(event); });
}

sh_status event_record(sh_backend_device* device, sh_backend_event event, sh_stream stream) {
    return guarded([&] { return device_of(device).event_record(event, stream); });
}

sh_status event_query(sh_backend_device* device, sh_backend_event event, uint32_t* out_done) {
    return guarded([&] { return device_of(device).event_query(event, out_done); });
}

sh_status event_synchronize(sh_backend_device* device, sh_backend_event event) {
    return guarded([&] { return device_of(device).event_synchronize(event); });
}

sh_status event_elapsed(sh_backend_device* device, sh_backend_event begin, sh_backend_event end, int64_t* out_ns) {
    return guarded([&] { return device_of(device).event_elapsed(begin, end, out_ns); });
}

// Addresses are checked here, so that the caller gets an error. In the stream's thread a wrong address would end the
// process.
sh_status enqueue_copy(sh_backend_device* device, sh_stream stream, Command&& command) {
    return guarded([&]() -> sh_status {
        const DeviceMemory& memory = device_of(device).memory();
        const bool to_host = command.kind == Command::Kind::copy_to_host;
        const bool from_host = command.kind == Command::Kind::copy_to_device;
        if (command.bytes && ((to_host && !command.to) || (from_host && !command.from))) {
            return fail(SH_ERROR_INVALID_ARGUMENT, "a copy of %" PRIu64 " bytes has NULL as host memory",
                        command.bytes);
        }
        sh_status status = SH_OK;
        if (!to_host) status = memory.check_usable(reinterpret_cast<uint64_t>(command.to), command.bytes);
        if (status >= 0 && (to_host || command.kind == Command::Kind::copy_on_device)) {
            status = memory.check_usable(reinterpret_cast<uint64_t>(command.from), command.bytes);
        }
        return status < 0 ? status : device_of(device).enqueue(stream, std::move(command));
    });
}

Command copy_command(Command::Kind kind, void* to, const void* from, uint64_t bytes) {
    Command command;
    command.kind = kind;
    command.to = to;
    command.from = from;
    command.bytes = bytes;
    return command;
}

sh_status copy_to_device(sh_backend_device* device, sh_stream stream, uint64_t to, const void* from, uint64_t bytes) {
    return enqueue_copy(device, stream,
                        copy_command(Command::Kind::copy_to_device, reinterpret_cast<void*>(to), from, bytes));
}

sh_status copy_to_host(sh_backend_device* device, sh_stream stream, void* to, uint64_t from, uint64_t bytes) {
    return enqueue_copy(device, stream,
                        copy_command(Command::Kind::copy_to_host, to, reinterpret_cast<void*>(from), bytes));
}

sh_status copy_on_device(sh_backend_device* device, sh_stream stream, uint64_t to, uint64_t from, uint64_t bytes) {
    return enqueue_copy(
        device, stream,
        copy_command(Command::Kind::copy_on_device, reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes));
}

sh_status fill(sh_backend_device* device, sh_stream stream, uint64_t to, uint8_t value, uint64_t bytes) {
    Command command = copy_command(Command::Kind::fill, reinterpret_cast<void*>(to), nullptr, bytes);
    command.fill_value = value;
    return enqueue_copy(device, stream, std::move(command));
}

sh_status unpack(sh_backend_device* device, sh_stream stream, const sh_backend_packed* packed) {
    return guarded([&]() -> sh_status {
        const DeviceMemory& memory = device_of(device).memory();
        if (sh_status status = support::check_packed(*packed); status < 0) return status;
        const uint64_t from = packed->from + uint64_t(packed->places[0]) * 16;
        sh_status status = memory.check_usable(from, support::packed_bytes(*packed));
        if (status >= 0) status = memory.check_usable(packed->to, support::unpacked_bytes(*packed));
        if (status >= 0 && packed->failed) status = memory.check_usable(packed->failed, 4);
        if (status < 0) return status;
        Command command;
        command.kind = Command::Kind::unpack;
        command.packed = std::make_unique<const sh_backend_packed>(*packed);
        return device_of(device).enqueue(stream, std::move(command));
    });
}

// The elements may be the engine's: what it allocates need not be memory of the device here.
sh_status enqueue_tiles(sh_backend_device* device, sh_stream stream, Command::Kind kind,
                        const sh_backend_tiles* tiles) {
    return guarded([&]() -> sh_status {
        if (sh_status status = support::check_tiles(*tiles); status < 0) return status;
        Command command;
        command.kind = kind;
        command.tiles = std::make_unique<const sh_backend_tiles>(*tiles);
        return device_of(device).enqueue(stream, std::move(command));
    });
}

sh_status pack_tiles(sh_backend_device* device, sh_stream stream, const sh_backend_tiles* tiles) {
    return enqueue_tiles(device, stream, Command::Kind::pack_tiles, tiles);
}

sh_status unpack_tiles(sh_backend_device* device, sh_stream stream, const sh_backend_tiles* tiles) {
    return enqueue_tiles(device, stream, Command::Kind::unpack_tiles, tiles);
}

sh_status memory_is_reachable(sh_backend_device* device, uint64_t address, uint64_t bytes, uint32_t* out_reachable) {
    return guarded([&]() -> sh_status {
        const bool mapped = device_of(device).memory().check_mapped(address, bytes) >= 0;
        *out_reachable = mapped || Neighbours::all().is_mapped(address, bytes) ? 2 : 0;
        return SH_OK;
    });
}

sh_status contents_hash(sh_backend_device* device, sh_stream stream, uint64_t count, const sh_backend_range* ranges,
                        sh_backend_digest* out_digests) {
    if (const sh_status status = stream_synchronize(device, stream); status < 0) return status;
    for (uint64_t i = 0; i < count; i++)
        out_digests[i] = support::content_hash(reinterpret_cast<const void*>(ranges[i].address), ranges[i].bytes);
    return SH_OK;
}

sh_status device_synchronize(sh_backend_device* device) {
    return guarded([&]() -> sh_status {
        device_of(device).synchronize();
        return SH_OK;
    });
}

constexpr sh_backend kTable = {
    .struct_size = sizeof(sh_backend),
    .spi_version = SH_BACKEND_SPI_VERSION,
    .name = "host",
    .version = support::kVersion,
    SH_BACKEND_REQUIRED_FUNCTIONS(SH_BACKEND_ROW)  // by their own names
        .clock = nullptr,                          // events use the steady clock
    .thread_begin = nullptr,
    .stream_is_capturing = nullptr,
    .memory_is_reachable = memory_is_reachable,
    .device_synchronize = device_synchronize,
    .contents_hash = contents_hash,
    .unpack = unpack,
    .pack_tiles = pack_tiles,
    .unpack_tiles = unpack_tiles,
};

}  // namespace

const sh_backend* host_backend() { return &kTable; }

sh_status query(uint32_t spi_version, const sh_backend_host* host, const sh_backend** out_backend) {
    if (spi_version != SH_BACKEND_SPI_VERSION) return SH_ERROR_UNSUPPORTED;
    services.store(host);
    *out_backend = &kTable;
    return SH_OK;
}

MemoryStatistics memory_statistics(sh_backend_device* device) { return device_of(device).statistics(); }

std::vector<MemoryStatistics> all_memory_statistics() { return Neighbours::all().statistics(); }

void wait_for_all_work() {
    for (Device* const device : Neighbours::all().devices()) device->synchronize();
}

}  // namespace stagehand::host
