// The link, which limits the speed of everything else.
#include <fmt/format.h>

#include "bench/group.h"
#include "model/quantity.h"

namespace stagehand::cli::bench {

namespace {

// The speed that the library plans with if no speed is given: of copies in a row, timed by events of the device.
double raw_speed(sh_device* device) {
    const Runtime runtime = create_runtime(device, "raw link");
    const std::uint64_t bytes = device_memory(device).page_bytes;
    SharedSource source(device, bytes, false);
    const sh_segment segment = source.segment(bytes);
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    desc.bytes = bytes;
    desc.segments = &segment;
    desc.segment_count = 1;
    sh_block block = 0;
    check(sh_register_blocks(runtime.get(), &desc, 1, &block), "measuring the link");
    sh_use use = SH_USE_INIT;
    use.block = block;
    use.compute_ns = 1;
    check(sh_set_schedule(runtime.get(), &use, 1), "measuring the link");
    sh_plan_options options = SH_PLAN_OPTIONS_INIT;
    options.flags = SH_PLAN_DRY_RUN;
    sh_plan_info info = SH_PLAN_INFO_INIT;
    check(sh_plan(runtime.get(), &options, &info), "measuring the link");
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
