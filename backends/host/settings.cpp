#include "host/settings.h"

#include <unistd.h>

#include <algorithm>
#include <cinttypes>

#include "base/limits.h"

#include "platform/host_memory.h"
#include "support/last_error.h"
#include "support/options.h"

namespace stagehand::host {
namespace {

constexpr uint64_t kLargestPage = 2 << 20;  // the largest useful one, unless the smallest one is larger
constexpr const char* kKeys =
    "capacity, granularity (or page), largest_handle, bandwidth, latency, staging_piece, pin_limit, poison, "
    "jitter_us, jitter_seed, map_pages";

sh_status check(Settings& settings) {
    const uint64_t system_page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    if (settings.granularity_bytes == 0) settings.granularity_bytes = system_page;
    const uint64_t granularity = settings.granularity_bytes;
    if ((granularity & (granularity - 1)) != 0 || granularity < system_page || granularity > (1u << 30)) {
        return support::fail(SH_ERROR_INVALID_ARGUMENT,
                             "option granularity: %" PRIu64 " is not a power of two from %" PRIu64 " to 1 GiB",
                             granularity, system_page);
    }
    if (settings.capacity_bytes == 0)
        settings.capacity_bytes = std::max(platform::read_host_memory().limit_bytes / 2, granularity);
    settings.capacity_bytes -= settings.capacity_bytes % granularity;
    if (settings.capacity_bytes == 0) {
        return support::fail(SH_ERROR_INVALID_ARGUMENT,
                             "option capacity: the value is less than one page of %" PRIu64 " bytes", granularity);
    }
    if (settings.staging_piece_bytes == 0)
        return support::fail(SH_ERROR_INVALID_ARGUMENT, "option staging_piece: the value must not be 0");
    settings.largest_page_bytes = std::max(granularity, kLargestPage);
    const uint64_t handle = settings.largest_handle_bytes;
    if (handle && (!limits::is_page(handle) || handle < settings.largest_page_bytes)) {
        return support::fail(SH_ERROR_INVALID_ARGUMENT,
                             "option largest_handle: %" PRIu64 " is neither 0 nor a power of two from %" PRIu64
                             " to 1 GiB",
                             handle, settings.largest_page_bytes);
    }
    return support::check_latency(settings.latency_ns);
}

}  // namespace

sh_status read_settings(const char* text, Settings* out) {
    Settings settings;
    support::Options options;
    sh_status status = support::Options::parse(text, &options);
    // The text of the first failure stays, so nothing is read after a failure.
    const auto take = [&status](auto&& read) {
        if (status >= 0) status = read();
    };
    take([&] { return options.take_bytes("capacity", &settings.capacity_bytes); });
    take([&] { return options.take_bytes("granularity", "page", &settings.granularity_bytes); });
    take([&] { return options.take_bytes("largest_handle", &settings.largest_handle_bytes); });
    take([&] { return options.take_rate("bandwidth", &settings.bandwidth); });
    take([&] { return options.take_duration("latency", 1, &settings.latency_ns); });
    take([&] { return options.take_bytes("staging_piece", &settings.staging_piece_bytes); });
    take([&] { return options.take_bytes("pin_limit", &settings.pin_limit_bytes); });
    take([&] { return options.take_flag("poison", &settings.poison); });
    take([&] { return options.take_flag("map_pages", &settings.map_pages); });
    take([&] { return options.take_duration("jitter_us", 1000, &settings.jitter_ns); });
    take([&] { return options.take_number("jitter_seed", &settings.jitter_seed); });
    take([&] { return options.finish(kKeys); });
    take([&] { return check(settings); });
    if (status < 0) return status;
    *out = settings;
    return SH_OK;
}

}  // namespace stagehand::host
