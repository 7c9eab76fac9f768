// The link, which limits the speed of everything else.
#include <cstring>

#include <fmt/format.h>

#include "bench/group.h"
#include "model/quantity.h"

namespace stagehand::cli::bench {

namespace {

// The speed that the library plans with if no speed is given: of copies in a row, timed by events of the device.
double raw_speed(sh_device* device) {
    const Runtime runtime = create_runtime(device, "raw link");
    const std::uint64_t bytes = device_memory(device).page_bytes;
    const HostMemory source(device, bytes);
    std::memset(source.data(), 0x5a, bytes);
    sh_use use = SH_USE_INIT;
    use.block = register_block(runtime.get(), source.data(), bytes, 0, "measuring the link");
    use.compute_ns = 1;
    set_order(runtime.get(), {use}, "measuring the link");
    sh_plan_options options = SH_PLAN_OPTIONS_INIT;
    options.flags = SH_PLAN_DRY_RUN;
    const sh_plan_info info = make_plan(runtime.get(), "measuring the link", options);
    return static_cast<double>(info.link_bytes_per_second);
}

}  // namespace

Link measure_link(sh_device* device, bool simulation) {
    Link link;
    link.raw = raw_speed(device);
    const std::optional<CopySpeed> speed = measure_copy_speed(device);
    if (!speed) throw CommandError(ExitCode::device, "the device's memory is too small to measure the link");
    link.to_device = speed->to_device_bytes_per_second;
    link.to_host = speed->to_host_bytes_per_second;
    link.bytes = speed->bytes;
    link.pinned = speed->pinned;
    if (!simulation) link.both_ways = measure_both_ways(device);
    return link;
}

void report_link(const Bench& bench, GroupReport& report) {
    const Link& link = bench.link;
    report.about = fmt::format("pinned memory, {} in large blocks", model::format_bytes(link.bytes));
    report.rows.push_back({"host to device", Unit::bytes_per_second, link.to_device, link.raw, "raw copies"});
    report.rows.back().firm = true;
    report.rows.push_back({"device to host", Unit::bytes_per_second, link.to_host, link.to_device, "host to device"});
    if (!link.pinned) report.notes.push_back(unpinned_note(link.bytes));
    if (!link.both_ways) {
        report.notes.push_back(
            "both ways at once: left out, because it needs real time and device memory for five blocks");
        return;
    }
    const BothWays& both = *link.both_ways;
    Row row = {"both ways at once",
               Unit::bytes_per_second,
               both.to_device_bytes_per_second + both.to_host_bytes_per_second,
               link.to_device + link.to_host,
               "each way alone, added",
               fmt::format("{} to the device, {} to the host", model::format_rate(both.to_device_bytes_per_second),
                           model::format_rate(both.to_host_bytes_per_second))};
    row.more = {{"to_device_bytes_per_second", both.to_device_bytes_per_second},
                {"to_host_bytes_per_second", both.to_host_bytes_per_second}};
    report.rows.push_back(std::move(row));
}

}  // namespace stagehand::cli::bench
