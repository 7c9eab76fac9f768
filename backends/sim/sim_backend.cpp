#include "sim/sim_backend.h"

#include <cinttypes>
#include <memory>

#include "backend/functions.h"
#include "sim/device.h"
#include "sim/settings.h"
#include "support/last_error.h"
#include "support/version.h"

namespace stagehand::sim {
namespace {

using support::fail;
using support::guarded;
using support::last_error;

Device& device_of(sh_backend_device* device) { return *reinterpret_cast<Device*>(device); }

sh_status probe(uint32_t* out_device_count) {
    *out_device_count = 1;
    return SH_OK;
}

sh_status device_open(uint32_t index, const char* options, sh_backend_device** out_device,
                      sh_backend_device_info* out_info) {
    return guarded([&]() -> sh_status {
        if (index != 0) return fail(SH_ERROR_NOT_FOUND, "there is no simulated device %" PRIu32 ", only 0", index);
        Settings settings;
        if (sh_status status = read_settings(options, &settings); status < 0) return status;
        auto device = std::make_unique<Device>(settings);
        device->describe(out_info);
        *out_device = reinterpret_cast<sh_backend_device*>(device.release());
        return SH_OK;
    });
}

void device_close(sh_backend_device* device) { delete reinterpret_cast<Device*>(device); }

sh_status memory_info(sh_backend_device* device, uint64_t* out_free, uint64_t* out_total) {
    device_of(device).memory_info(out_free, out_total);
    return SH_OK;
}

sh_status pages_create(sh_backend_device* device, uint64_t page_bytes, uint64_t count, sh_backend_page* out_pages) {
    return guarded([&] { return device_of(device).pages_create(page_bytes, count, out_pages); });
}

sh_status pages_destroy(sh_backend_device* device, uint64_t page_bytes, uint64_t count, const sh_backend_page* pages) {
    return guarded([&] { return device_of(device).pages_destroy(page_bytes, count, pages); });
}

sh_status range_reserve(sh_backend_device* device, uint64_t bytes, uint64_t alignment, uint64_t* out_address) {
    return guarded([&] { return device_of(device).range_reserve(bytes, alignment, out_address); });
}

sh_status range_free(sh_backend_device* device, uint64_t address, uint64_t bytes) {
    return guarded([&] { return device_of(device).range_free(address, bytes); });
}

sh_status pages_map(sh_backend_device* device, uint64_t address, uint64_t page_bytes, uint64_t count,
                    const sh_backend_page* pages) {
    return guarded([&] { return device_of(device).pages_map(address, page_bytes, count, pages); });
}

sh_status pages_unmap(sh_backend_device* device, uint64_t address, uint64_t page_bytes, uint64_t count) {
    return guarded([&] { return device_of(device).pages_unmap(address, page_bytes, count); });
}

sh_status host_register(sh_backend_device* device, void* memory, uint64_t bytes) {
    return guarded([&] { return device_of(device).pinned().add(memory, bytes); });
}

sh_status host_unregister(sh_backend_device* device, void* memory) {
    return guarded([&] { return device_of(device).pinned().remove(memory); });
}

// The device reads no bytes, so memory need not be pinned.
sh_status host_is_pinned(sh_backend_device*, const void*, uint64_t, uint32_t* out_pinned) {
    *out_pinned = 1;
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
    return guarded([&] { return device_of(device).stream_launch(stream, fn, user_data, busy_ns); });
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

sh_status copy_to_device(sh_backend_device* device, sh_stream stream, uint64_t to, const void*, uint64_t bytes) {
    return guarded([&] { return device_of(device).copy(stream, Direction::to_device, to, bytes); });
}

sh_status copy_to_host(sh_backend_device* device, sh_stream stream, void*, uint64_t from, uint64_t bytes) {
    return guarded([&] { return device_of(device).copy(stream, Direction::to_host, from, bytes); });
}

sh_status copy_on_device(sh_backend_device* device, sh_stream stream, uint64_t to, uint64_t from, uint64_t bytes) {
    return guarded([&] { return device_of(device).copy_on_device(stream, to, from, bytes); });
}

sh_status fill(sh_backend_device* device, sh_stream stream, uint64_t to, uint8_t, uint64_t bytes) {
    return guarded([&] { return device_of(device).fill(stream, to, bytes); });
}

sh_status device_synchronize(sh_backend_device* device) {
    device_of(device).synchronize();
    return SH_OK;
}

uint64_t clock_ns(sh_backend_device* device) { return device_of(device).now_ns(); }

sh_status unpack(sh_backend_device* device, sh_stream stream, const sh_backend_packed* packed) {
    return guarded([&] { return device_of(device).unpack(stream, *packed); });
}

constexpr sh_backend kTable = {
    .struct_size = sizeof(sh_backend),
    .spi_version = SH_BACKEND_SPI_VERSION,
    .name = "sim",
    .version = support::kVersion,
    SH_BACKEND_REQUIRED_FUNCTIONS(SH_BACKEND_ROW)  // by their own names
        .clock = clock_ns,
    .thread_begin = nullptr,
    .stream_is_capturing = nullptr,
    .memory_is_reachable = nullptr,
    .device_synchronize = device_synchronize,
    .contents_hash = nullptr,
    .unpack = unpack,
    .pack_tiles = nullptr,  // the link would have to know how much of each tile is left
    .unpack_tiles = nullptr,
};

}  // namespace

const sh_backend* sim_backend() { return &kTable; }

sh_status query(uint32_t spi_version, const sh_backend_host*, const sh_backend** out_backend) {
    if (spi_version != SH_BACKEND_SPI_VERSION) return SH_ERROR_UNSUPPORTED;
    *out_backend = &kTable;
    return SH_OK;
}

}  // namespace stagehand::sim
