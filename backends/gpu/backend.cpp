// The table of a GPU backend.
#include <algorithm>
#include <cctype>
#include <cinttypes>
#include <cstring>
#include <iterator>
#include <memory>

#include "backend/functions.h"
#include "gpu/busy.h"
#include "gpu/content_hash.h"
#include "gpu/device.h"
#include "gpu/pack_tiles.h"
#include "gpu/unpack.h"
#include "support/device_info.h"
#include "support/last_error.h"
#include "support/options.h"
#include "support/version.h"

namespace SH_GPU_NAMESPACE {
namespace {

using support::fail;
using support::guarded;
using support::last_error;

constexpr uint64_t kLargestPage = 32 << 20;
// A call for a page takes about as long for 1 GiB as for 2 MiB: tens of microseconds.
constexpr uint64_t kLargestHandle = 1 << 30;
constexpr uint64_t kPlainUnit = 2 << 20;     // drivers round large allocations to this size
constexpr uint64_t kStagingPiece = 4 << 20;  // smaller pieces slow the link, larger ones the cache
constexpr uint64_t kCopyLatencyNs = 2'000;
constexpr uint32_t kQueueDepth = 1000;  // a call waits on the host if this many commands are queued

sh_status probe(uint32_t* out_device_count) {
    return guarded([&]() -> sh_status {
        if (!driver()) return SH_ERROR_BACKEND_UNAVAILABLE;
        int count = 0;
        const api::Result result = driver()->device_count(&count);
        if (result != api::kSuccess) {
            failed(result, "device_count");
            return SH_ERROR_BACKEND_UNAVAILABLE;
        }
        if (count <= 0) return fail(SH_ERROR_BACKEND_UNAVAILABLE, "the driver reports no device");
        *out_device_count = static_cast<uint32_t>(count);
        return SH_OK;
    });
}

sh_status describe(const Device& device, sh_backend_device_info* to) {
    sh_backend_device_info info = {};
    sh_backend_device_info* const out = &info;
    out->flags = SH_BACKEND_IS_GPU | (device.maps_pages ? SH_BACKEND_FIXED_ADDRESSES : 0) |
                 (api::kReachesPeers ? SH_BACKEND_PEERS : 0);
    SH_GPU_TRY(device_name, out->description, static_cast<int>(sizeof out->description), device.index);
    SH_GPU_ENTER(device);
    size_t free = 0, total = 0, granularity = kPlainUnit;
    SH_GPU_TRY(memory_info, &free, &total);
    if (device.maps_pages) {
        const auto properties = api::page_properties(device.index);
        SH_GPU_TRY(page_granularity, &granularity, &properties, api::kGranularity);
    }
    out->total_bytes = total;
    out->granularity_bytes = granularity;
    out->largest_page_bytes = std::max<uint64_t>(kLargestPage, granularity);
    out->staging_piece_bytes = kStagingPiece;
    out->copy_latency_ns = kCopyLatencyNs;
    out->queue_depth = kQueueDepth;
    out->thread_stream = api::kThreadStream;
    out->kind = api::kDeviceKind;
    out->host_node = api::host_node(*driver(), device.index);
    // The system writes the letters of addresses small.
    if (driver()->bus_id &&
        driver()->bus_id(out->bus_id, static_cast<int>(sizeof out->bus_id), device.index) == api::kSuccess)
        std::transform(out->bus_id, std::find(out->bus_id, std::end(out->bus_id), 0), out->bus_id,
                       [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
    else
        out->bus_id[0] = 0;
    out->largest_handle_bytes = std::max<uint64_t>(kLargestHandle, granularity);
    support::give_info(info, to);
    return SH_OK;
}

void device_close(sh_backend_device* device) {
    const std::unique_ptr<Device> closed(&device_of(device));
    {
        const Scope scope(*closed);
        if (scope.result() == api::kSuccess) {
            unload_busy(*closed);
            unload_content_hash(*closed);
            unload_unpack(*closed);
            unload_pack_tiles(*closed);
        }
    }
    api::close_context(*driver(), closed->index);
}

sh_status device_open(uint32_t index, const char* options, sh_backend_device** out_device,
                      sh_backend_device_info* out_info) {
    return guarded([&]() -> sh_status {
        if (!driver()) return SH_ERROR_BACKEND_UNAVAILABLE;
        support::Options given;
        if (sh_status status = support::Options::parse(options, &given); status < 0) return status;
        bool map_pages = true;
        if (sh_status status = given.take_flag("map_pages", &map_pages); status < 0) return status;
        if (sh_status status = given.finish("map_pages"); status < 0) return status;
        int count = 0;
        SH_GPU_TRY(device_count, &count);
        if (index >= static_cast<uint32_t>(std::max(count, 0)))
            return fail(SH_ERROR_NOT_FOUND, "the driver has %d devices, but no device %" PRIu32, count, index);
        auto device = std::make_unique<Device>();
        SH_GPU_TRY(device_get, &device->index, static_cast<int>(index));
        device->maps_pages = map_pages && api::maps_pages(*driver(), device->index);
        if (const api::Result result = api::open_context(*driver(), device->index, &device->context);
            result != api::kSuccess)
            return failed(result, "open_context");
        if (sh_status status = describe(*device, out_info); status < 0) {
            api::close_context(*driver(), device->index);
            return status;
        }
        *out_device = reinterpret_cast<sh_backend_device*>(device.release());
        return SH_OK;
    });
}

// Nothing to prepare, because each call enters the context and the relaxed capture mode by itself.
sh_status thread_begin(sh_backend_device*) { return SH_OK; }

const sh_backend table = {
    .struct_size = sizeof table,
    .spi_version = SH_BACKEND_SPI_VERSION,
    .name = api::kBackendName,
    .version = support::kVersion,
    SH_BACKEND_REQUIRED_FUNCTIONS(SH_BACKEND_ROW)  // by their own names
        .clock = nullptr,
    .thread_begin = thread_begin,
    .stream_is_capturing = stream_is_capturing,
    .memory_is_reachable = api::kReachesPeers ? memory_is_reachable : nullptr,
    .device_synchronize = device_synchronize,
    .contents_hash = api::kHashesContents ? contents_hash : nullptr,
    .unpack = api::kUnpacks ? unpack : nullptr,
    .pack_tiles = api::kPacksTiles ? pack_tiles : nullptr,
    .unpack_tiles = api::kPacksTiles ? unpack_tiles : nullptr,
};

}  // namespace

sh_status query(uint32_t spi_version, const sh_backend_host*, const sh_backend** out_backend) {
    if (spi_version != SH_BACKEND_SPI_VERSION) return SH_ERROR_UNSUPPORTED;
    *out_backend = &table;
    return SH_OK;
}

}  // namespace SH_GPU_NAMESPACE
