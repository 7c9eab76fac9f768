#include "sim/settings.h"

#include <algorithm>
#include <cinttypes>

#include "support/last_error.h"
#include "support/options.h"

namespace stagehand::sim {
namespace {

constexpr const char* kKeys =
    "capacity, granularity (or page), largest_page, staging_piece, bandwidth, later_bandwidth, later_from, duplex, "
    "unpack_speed, latency, call_ns";

sh_status check_power_of_two(const char* key, uint64_t value) {
    if (value != 0 && (value & (value - 1)) == 0 && value <= uint64_t(1) << 30) return SH_OK;
    return support::fail(SH_ERROR_INVALID_ARGUMENT, "option %s: %" PRIu64 " is not a power of two up to 1 GiB", key,
                         value);
}

sh_status check(Settings& settings) {
    if (sh_status status = check_power_of_two("granularity", settings.granularity_bytes); status < 0) return status;
    if (sh_status status = check_power_of_two("largest_page", settings.largest_page_bytes); status < 0) return status;
    settings.largest_page_bytes = std::max(settings.largest_page_bytes, settings.granularity_bytes);
    settings.capacity_bytes -= settings.capacity_bytes % settings.granularity_bytes;
    if (settings.capacity_bytes == 0) {
        return support::fail(SH_ERROR_INVALID_ARGUMENT,
                             "option capacity: the value is less than one page of %" PRIu64 " bytes",
                             settings.granularity_bytes);
    }
    if (settings.bandwidth == 0)
        return support::fail(SH_ERROR_INVALID_ARGUMENT, "option bandwidth: the value must not be 0");
    if (settings.unpack_speed == 0)
        return support::fail(SH_ERROR_INVALID_ARGUMENT, "option unpack_speed: the value must not be 0");
    if (settings.staging_piece_bytes == 0)
        return support::fail(SH_ERROR_INVALID_ARGUMENT, "option staging_piece: the value must not be 0");
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
    take([&] { return options.take_bytes("largest_page", &settings.largest_page_bytes); });
    take([&] { return options.take_bytes("staging_piece", &settings.staging_piece_bytes); });
    take([&] { return options.take_rate("bandwidth", &settings.bandwidth); });
    take([&] { return options.take_rate("later_bandwidth", &settings.later_bandwidth); });
    take([&] { return options.take_duration("later_from", 1, &settings.later_from_ns); });
    take([&] { return options.take_real("duplex", 1, 2, &settings.duplex); });
    take([&] { return options.take_rate("unpack_speed", &settings.unpack_speed); });
    take([&] { return options.take_duration("latency", 1, &settings.latency_ns); });
    take([&] { return options.take_duration("call_ns", 1, &settings.call_ns); });
    take([&] { return options.finish(kKeys); });
    take([&] { return check(settings); });
    if (status < 0) return status;
    *out = settings;
    return SH_OK;
}

}  // namespace stagehand::sim
