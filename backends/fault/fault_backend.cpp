// The table of the fault backend and the entry of the plugin.
#include <stagehand/backend.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>

#include "backend/functions.h"
#include "fault/call_log.h"
#include "fault/order.h"
#include "fault/settings.h"
#include "support/last_error.h"
#include "support/packed.h"
#include "support/version.h"

namespace stagehand::fault {
namespace {

using support::fail;
using support::guarded;
using support::last_error;

constexpr uint32_t kDevices = 8;

struct Device {
    const sh_backend* wrapped = nullptr;
    sh_backend_device* inner = nullptr;
    std::shared_ptr<CallLog> log;
    bool late = false;
    Order* order = nullptr;  // if it is followed
    sh_status late_status = SH_ERROR_BACKEND;
    mutable std::atomic<bool> gone{false};
};

Device& device_of(sh_backend_device* device) { return *reinterpret_cast<Device*>(device); }

std::atomic<const sh_backend_host*> services{nullptr};

sh_status injected(sh_status status, Call call) {
    return fail(status, "%s: the fault backend made this call fail", name_of(call));
}

bool copies(Call call) {
    return call == Call::copy_to_device || call == Call::copy_to_host || call == Call::copy_on_device ||
           call == Call::fill;
}

bool asks(Call call) {
    return call == Call::stream_synchronize || call == Call::event_query || call == Call::event_synchronize ||
           call == Call::device_synchronize;
}

// Counts a call, and calls the wrapped backend unless the call has to fail.
template <class Function, class... Arguments>
sh_status pass(sh_backend_device* handle, Call call, Function sh_backend::*member, Arguments... arguments) {
    return guarded([&]() -> sh_status {
        const Device& device = device_of(handle);
        sh_status planned = device.log->enter(call);
        if (device.late) {
            if (planned < 0) device.gone = true;
            if (device.gone && copies(call)) return SH_OK;
            planned = device.gone && asks(call) ? device.late_status : SH_OK;
        }
        if (const sh_status status = planned; status < 0) {
            // A lost device copies nothing once it has said so.
            if (status == SH_ERROR_DEVICE_LOST && call == Call::stream_synchronize)
                (void)(device.wrapped->*member)(device.inner, arguments...);
            return injected(status, call);
        }
        const sh_status status = (device.wrapped->*member)(device.inner, arguments...);
        if (status >= 0) device.log->succeed(call);
        return status < 0 ? fail(status, "%s", device.wrapped->last_error()) : status;
    });
}

uint64_t at(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

void tell_tiles(Order& order, const char* name, sh_stream stream, const sh_backend_tiles& tiles, bool packs) {
    const uint64_t bytes = tiles.elements * support::element_bytes(tiles.format);
    const uint64_t headers = (tiles.elements + SH_BACKEND_TILE_ELEMENTS - 1) / SH_BACKEND_TILE_ELEMENTS * 16;
    order.operation(name, stream,
                    std::array{Use{tiles.device, bytes, !packs}, Use{at(tiles.host), bytes, packs},
                               Use{at(tiles.headers), headers, packs}});
}

// Tells what a call has done, if it has done anything.
template <class Tell>
sh_status followed(sh_backend_device* handle, sh_status status, Tell&& tell) {
    const Device& device = device_of(handle);
    if (status < 0 || !device.order || device.gone) return status;
    return guarded([&]() -> sh_status { return tell(*device.order), status; });
}

// Tells of work that was queued. The work of a graph runs when the graph is launched, so a capture tells nothing.
template <class Tell>
sh_status queued(sh_backend_device* handle, sh_stream stream, sh_status status, Tell&& tell) {
    const Device& device = device_of(handle);
    uint32_t captures = 0;
    if (device.order && device.wrapped->stream_is_capturing && stream != SH_STREAM_HOST &&
        device.wrapped->stream_is_capturing(device.inner, stream, &captures) == SH_OK && captures)
        return status;
    return followed(handle, status, tell);
}

sh_status probe(uint32_t* out_device_count) {
    *out_device_count = kDevices;
    return SH_OK;
}

sh_status open_wrapped(const Settings& settings, Device* device, sh_backend_device_info* out_info) {
    if (const sh_status status = device->log->enter(Call::device_open); status < 0)
        return injected(status, Call::device_open);
    const sh_backend_host* const host = services.load();
    if (!host || host->struct_size < sizeof *host || !host->find_backend) {
        return fail(SH_ERROR_UNSUPPORTED, "this library does not let a backend find another backend");
    }
    const sh_backend* wrapped = nullptr;
    if (const sh_status status = host->find_backend(settings.wrapped_name.c_str(), &wrapped); status < 0) {
        return fail(status, "option wrap: backend '%s' cannot be used (see the log for the reason)",
                    settings.wrapped_name.c_str());
    }
    const char* const options = settings.wrapped_options.empty() ? nullptr : settings.wrapped_options.c_str();
    const sh_status status = wrapped->device_open(settings.wrapped_index, options, &device->inner, out_info);
    if (status < 0) return fail(status, "%s", wrapped->last_error());
    device->wrapped = wrapped;
    return status;
}

sh_status device_open(uint32_t index, const char* options, sh_backend_device** out_device,
                      sh_backend_device_info* out_info) {
    return guarded([&]() -> sh_status {
        if (index >= kDevices)
            return fail(SH_ERROR_NOT_FOUND, "there is no fault device %u, only 0 to %u; choose by wrap=NAME:INDEX",
                        index, kDevices - 1);
        Settings settings;
        if (sh_status status = read_settings(options, &settings); status < 0) return status;
        auto device = std::make_unique<Device>();
        device->log = std::make_shared<CallLog>();
        device->log->set_delays(settings.delay_ns, settings.delay_seed);
        device->late = settings.late;
        device->late_status = settings.fail_status;
        device->log->arm(settings.any_call ? nullptr : &settings.fail_call, settings.fail_at, settings.fail_count,
                         settings.fail_status);
        set_latest_log(device->log);
        if (sh_status status = open_wrapped(settings, device.get(), out_info); status < 0) return status;
        device->log->set_open(true);
        if (settings.ordered) {
            device->order = &Order::of_process();
            device->order->device_opened(settings.ordered > 1);
        }
        *out_device = reinterpret_cast<sh_backend_device*>(device.release());
        return SH_OK;
    });
}

void device_close(sh_backend_device* handle) {
    const std::unique_ptr<Device> device(reinterpret_cast<Device*>(handle));
    if (!device) return;
    device->wrapped->device_close(device->inner);
    device->log->set_open(false);
    if (device->order) device->order->device_closed();
}

sh_status memory_info(sh_backend_device* device, uint64_t* out_free, uint64_t* out_total) {
    const sh_status status = pass(device, Call::memory_info, &sh_backend::memory_info, out_free, out_total);
    if (status == SH_OK) *out_free -= std::min(*out_free, device_of(device).log->taken());
    return status;
}

sh_status pages_create(sh_backend_device* device, uint64_t page_bytes, uint64_t count, sh_backend_page* out_pages) {
    return pass(device, Call::pages_create, &sh_backend::pages_create, page_bytes, count, out_pages);
}

sh_status pages_destroy(sh_backend_device* device, uint64_t page_bytes, uint64_t count, const sh_backend_page* pages) {
    return followed(device, pass(device, Call::pages_destroy, &sh_backend::pages_destroy, page_bytes, count, pages),
                    [&](Order& order) {
                        order.pages_destroyed(device, {pages, count});
                    });
}

sh_status range_reserve(sh_backend_device* device, uint64_t bytes, uint64_t alignment, uint64_t* out_address) {
    return pass(device, Call::range_reserve, &sh_backend::range_reserve, bytes, alignment, out_address);
}

sh_status range_free(sh_backend_device* device, uint64_t address, uint64_t bytes) {
    return followed(device, pass(device, Call::range_free, &sh_backend::range_free, address, bytes),
                    [&](Order& order) { order.range_freed(address, bytes); });
}

sh_status pages_map(sh_backend_device* device, uint64_t address, uint64_t page_bytes, uint64_t count,
                    const sh_backend_page* pages) {
    return followed(device, pass(device, Call::pages_map, &sh_backend::pages_map, address, page_bytes, count, pages),
                    [&](Order& order) {
                        order.pages_mapped(device, address, page_bytes, {pages, count});
                    });
}

sh_status pages_unmap(sh_backend_device* device, uint64_t address, uint64_t page_bytes, uint64_t count) {
    return followed(device, pass(device, Call::pages_unmap, &sh_backend::pages_unmap, address, page_bytes, count),
                    [&](Order& order) { order.pages_unmapped(address, page_bytes, count); });
}

sh_status host_register(sh_backend_device* device, void* memory, uint64_t bytes) {
    return followed(device, pass(device, Call::host_register, &sh_backend::host_register, memory, bytes),
                    [&](Order& order) { order.host_registered(memory, bytes); });
}

sh_status host_unregister(sh_backend_device* device, void* memory) {
    return followed(device, pass(device, Call::host_unregister, &sh_backend::host_unregister, memory),
                    [&](Order& order) { order.host_unregistered(memory); });
}

sh_status host_is_pinned(sh_backend_device* device, const void* memory, uint64_t bytes, uint32_t* out_pinned) {
    return pass(device, Call::host_is_pinned, &sh_backend::host_is_pinned, memory, bytes, out_pinned);
}

sh_status stream_create(sh_backend_device* device, sh_stream* out_stream) {
    return followed(device, pass(device, Call::stream_create, &sh_backend::stream_create, out_stream),
                    [&](Order& order) { order.stream_made(*out_stream); });
}

sh_status stream_destroy(sh_backend_device* device, sh_stream stream) {
    return pass(device, Call::stream_destroy, &sh_backend::stream_destroy, stream);
}

// A device that says it is lost has been waited for, too.
sh_status stream_synchronize(sh_backend_device* device, sh_stream stream) {
    const sh_status status = pass(device, Call::stream_synchronize, &sh_backend::stream_synchronize, stream);
    (void)followed(device, status == SH_ERROR_DEVICE_LOST ? SH_OK : status,
                   [&](Order& order) { order.stream_ended(stream); });
    return status;
}

sh_status stream_wait_event(sh_backend_device* device, sh_stream stream, sh_backend_event event) {
    return queued(device, stream, pass(device, Call::stream_wait_event, &sh_backend::stream_wait_event, stream, event),
                  [&](Order& order) { order.wait(stream, event); });
}

sh_status stream_launch(sh_backend_device* device, sh_stream stream, void (*fn)(void*), void* user_data,
                        int64_t busy_ns) {
    return pass(device, Call::stream_launch, &sh_backend::stream_launch, stream, fn, user_data, busy_ns);
}

sh_status event_create(sh_backend_device* device, uint32_t timing, sh_backend_event* out_event) {
    return followed(device, pass(device, Call::event_create, &sh_backend::event_create, timing, out_event),
                    [&](Order& order) { order.event_made(*out_event); });
}

sh_status event_destroy(sh_backend_device* device, sh_backend_event event) {
    return pass(device, Call::event_destroy, &sh_backend::event_destroy, event);
}

sh_status event_record(sh_backend_device* device, sh_backend_event event, sh_stream stream) {
    return queued(device, stream, pass(device, Call::event_record, &sh_backend::event_record, event, stream),
                  [&](Order& order) { order.record(event, stream); });
}

sh_status event_query(sh_backend_device* device, sh_backend_event event, uint32_t* out_done) {
    return followed(device, pass(device, Call::event_query, &sh_backend::event_query, event, out_done),
                    [&](Order& order) {
                        if (*out_done) order.event_ended(event);
                    });
}

sh_status event_synchronize(sh_backend_device* device, sh_backend_event event) {
    return followed(device, pass(device, Call::event_synchronize, &sh_backend::event_synchronize, event),
                    [&](Order& order) { order.event_ended(event); });
}

sh_status event_elapsed(sh_backend_device* device, sh_backend_event begin, sh_backend_event end, int64_t* out_ns) {
    return pass(device, Call::event_elapsed, &sh_backend::event_elapsed, begin, end, out_ns);
}

sh_status copy_to_device(sh_backend_device* device, sh_stream stream, uint64_t to, const void* from, uint64_t bytes) {
    return queued(
        device, stream, pass(device, Call::copy_to_device, &sh_backend::copy_to_device, stream, to, from, bytes),
        [&](Order& order) {
            order.operation("copy_to_device", stream, std::array{Use{to, bytes, true}, Use{at(from), bytes, false}});
        });
}

sh_status copy_to_host(sh_backend_device* device, sh_stream stream, void* to, uint64_t from, uint64_t bytes) {
    return queued(
        device, stream, pass(device, Call::copy_to_host, &sh_backend::copy_to_host, stream, to, from, bytes),
        [&](Order& order) {
            order.operation("copy_to_host", stream, std::array{Use{at(to), bytes, true}, Use{from, bytes, false}});
        });
}

sh_status copy_on_device(sh_backend_device* device, sh_stream stream, uint64_t to, uint64_t from, uint64_t bytes) {
    return queued(
        device, stream, pass(device, Call::copy_on_device, &sh_backend::copy_on_device, stream, to, from, bytes),
        [&](Order& order) {
            order.operation("copy_on_device", stream, std::array{Use{to, bytes, true}, Use{from, bytes, false}});
        });
}

sh_status fill(sh_backend_device* device, sh_stream stream, uint64_t to, uint8_t value, uint64_t bytes) {
    return queued(device, stream, pass(device, Call::fill, &sh_backend::fill, stream, to, value, bytes),
                  [&](Order& order) {
                      order.operation("fill", stream, std::array{Use{to, bytes, true}});
                  });
}

uint64_t clock_ns(sh_backend_device* handle) {
    const Device& device = device_of(handle);
    if (device.wrapped->clock) return device.wrapped->clock(device.inner);
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// The call counts even if the wrapped backend does not need it, so that the numbers of calls are the same.
sh_status thread_begin(sh_backend_device* handle) {
    return guarded([&]() -> sh_status {
        const Device& device = device_of(handle);
        if (device.wrapped->thread_begin) return pass(handle, Call::thread_begin, &sh_backend::thread_begin);
        const sh_status status = device.log->enter(Call::thread_begin);
        return status < 0 ? injected(status, Call::thread_begin) : SH_OK;
    });
}

// A backend without captures has none under way.
sh_status stream_is_capturing(sh_backend_device* handle, sh_stream stream, uint32_t* out_capturing) {
    if (device_of(handle).wrapped->stream_is_capturing)
        return pass(handle, Call::stream_is_capturing, &sh_backend::stream_is_capturing, stream, out_capturing);
    *out_capturing = 0;
    return SH_OK;
}

sh_status memory_is_reachable(sh_backend_device* handle, uint64_t address, uint64_t bytes, uint32_t* out_reachable) {
    if (device_of(handle).wrapped->memory_is_reachable)
        return pass(handle, Call::memory_is_reachable, &sh_backend::memory_is_reachable, address, bytes, out_reachable);
    *out_reachable = 0;
    return SH_OK;
}

sh_status device_synchronize(sh_backend_device* handle) {
    if (device_of(handle).wrapped->device_synchronize)
        return followed(handle, pass(handle, Call::device_synchronize, &sh_backend::device_synchronize),
                        [](Order& order) { order.all_ended(); });
    return fail(SH_ERROR_UNSUPPORTED, "the wrapped backend has no device_synchronize");
}

sh_status contents_hash(sh_backend_device* handle, sh_stream stream, uint64_t count, const sh_backend_range* ranges,
                        sh_backend_digest* out_digests) {
    if (device_of(handle).wrapped->contents_hash)
        return pass(handle, Call::contents_hash, &sh_backend::contents_hash, stream, count, ranges, out_digests);
    return fail(SH_ERROR_UNSUPPORTED, "the wrapped backend hashes no contents");
}

sh_status unpack(sh_backend_device* handle, sh_stream stream, const sh_backend_packed* packed) {
    if (device_of(handle).wrapped->unpack)
        return queued(handle, stream, pass(handle, Call::unpack, &sh_backend::unpack, stream, packed),
                      [&](Order& order) {
                          const uint64_t from = packed->from + uint64_t(packed->places[0]) * 16;
                          order.operation("unpack", stream,
                                          std::array{Use{packed->to, support::unpacked_bytes(*packed), true},
                                                     Use{from, support::packed_bytes(*packed), false}});
                      });
    return fail(SH_ERROR_UNSUPPORTED, "the wrapped backend unpacks nothing");
}

sh_status pack_tiles(sh_backend_device* handle, sh_stream stream, const sh_backend_tiles* tiles) {
    if (device_of(handle).wrapped->pack_tiles)
        return queued(handle, stream, pass(handle, Call::pack_tiles, &sh_backend::pack_tiles, stream, tiles),
                      [&](Order& order) { tell_tiles(order, "pack_tiles", stream, *tiles, true); });
    return fail(SH_ERROR_UNSUPPORTED, "the wrapped backend packs nothing");
}

sh_status unpack_tiles(sh_backend_device* handle, sh_stream stream, const sh_backend_tiles* tiles) {
    if (device_of(handle).wrapped->unpack_tiles)
        return queued(handle, stream, pass(handle, Call::unpack_tiles, &sh_backend::unpack_tiles, stream, tiles),
                      [&](Order& order) { tell_tiles(order, "unpack_tiles", stream, *tiles, false); });
    return fail(SH_ERROR_UNSUPPORTED, "the wrapped backend packs nothing");
}

constexpr sh_backend kTable = {
    .struct_size = sizeof(sh_backend),
    .spi_version = SH_BACKEND_SPI_VERSION,
    .name = "fault",
    .version = support::kVersion,
    SH_BACKEND_REQUIRED_FUNCTIONS(SH_BACKEND_ROW)  // by their own names
        .clock = clock_ns,
    SH_BACKEND_OPTIONAL_FUNCTIONS(SH_BACKEND_ROW)  // likewise
};

}  // namespace
}  // namespace stagehand::fault

extern "C" SH_API sh_status sh_backend_query(uint32_t spi_version, const sh_backend_host* host,
                                             const sh_backend** out_backend) {
    if (spi_version != SH_BACKEND_SPI_VERSION) return SH_ERROR_UNSUPPORTED;
    stagehand::fault::services.store(host);
    *out_backend = &stagehand::fault::kTable;
    return SH_OK;
}
