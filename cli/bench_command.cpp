// `stagehand bench`: measures the library on a device, and compares each figure with a limit of the same run.
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/group.h"
#include "host_limits.h"
#include "interrupt.h"
#include "json_output.h"
#include "library.h"
#include "model/quantity.h"
#include "options.h"
#include "progress.h"
#include "terminal.h"

namespace stagehand::cli {

namespace {

using bench::Bench;
using bench::GroupReport;

struct Group {
    const char* name;
    std::function<void(Bench&, GroupReport&)> measure;
    bool needs_device;   // the group itself measures on the device
    bool real_only;      // a simulation cannot measure this group
    bool shared_source;  // needs the pinned memory that blocks share
};

const std::vector<Group>& groups() {
    static const std::vector<Group> all = {
        {"link", [](Bench& bench, GroupReport& report) { bench::report_link(bench, report); }, false, false, false},
        {"pinning", bench::measure_pinning, true, true, false},
        {"staging", bench::measure_staging, true, true, false},
        {"mapping", bench::measure_mapping, true, true, true},
        {"occupancy", bench::measure_occupancy, true, true, false},
        {"streaming", bench::measure_streaming, true, false, true},
        {"graph", bench::measure_graph, true, true, true},
    };
    return all;
}

struct BenchReport {
    sh_device_caps caps = sh_sized<sh_device_caps>();
    std::uint64_t page_bytes = 0;
    bench::Link link;
    std::optional<bool> pinned;  // the memory that models are streamed from
    std::vector<GroupReport> groups;
};

std::string json_text(const BenchReport& report, const BenchOptions& options) {
    Json groups = Json::object();
    for (const GroupReport& group : report.groups) groups[group.name] = bench::to_json(group);
    const Json json = {
        {"device", report.caps.name},
        {"description", report.caps.description},
        {"page_bytes", report.page_bytes},
        {"link_bytes_per_second", report.link.limit()},
        {"pinned", report.pinned ? Json(*report.pinned) : Json(nullptr)},
        {"quick", options.quick},
        {"interrupted", interrupted() != 0},
        {"groups", std::move(groups)},
    };
    return to_text(json);
}

bool wanted(const BenchOptions& options, const Group& group) {
    return options.only.empty() ||
           std::find(options.only.begin(), options.only.end(), group.name) != options.only.end();
}

// Whether the device can measure the group. A group that a simulation cannot measure is an error if --only names it.
bool possible(const BenchOptions& options, const Group& group, const sh_device_caps& caps) {
    if (!group.real_only || (caps.flags & SH_DEVICE_VIRTUAL_TIME) == 0) return true;
    if (!options.only.empty()) {
        throw CommandError(ExitCode::usage,
                           fmt::format("--only {}: device {} is a simulation, which cannot measure this group",
                                       group.name, caps.name));
    }
    return false;
}

std::vector<Group> chosen_groups(const BenchOptions& options, const sh_device_caps& caps) {
    std::vector<Group> chosen;
    for (const Group& group : groups())
        if (wanted(options, group) && possible(options, group, caps)) chosen.push_back(group);
    return chosen;
}

void run_groups(const std::vector<Group>& chosen, Bench& bench, BenchReport& report) {
    std::optional<bench::SharedSource> shared;
    const Terminal terminal = terminal_of(stdout);
    for (const Group& group : chosen) {
        // The figures of the link are already measured.
        if (interrupted() != 0 && group.needs_device) return;
        if (group.shared_source && !shared) {
            shared.emplace(bench.device, bench.extent.shared, bench.simulation);
            bench.shared = &*shared;
            report.pinned = shared->pinned();
        }
        GroupReport& found = report.groups.emplace_back();
        found.name = group.name;
        group.measure(bench, found);
        bench.progress.clear();
        if (!bench.options.json) {
            print(bench::table_text(found, terminal));
            finish_output();
        }
    }
}

}  // namespace

const std::vector<std::string>& bench_groups() {
    static const std::vector<std::string> names = [] {
        std::vector<std::string> all;
        for (const Group& group : groups()) all.emplace_back(group.name);
        return all;
    }();
    return names;
}

int bench_command(const BenchOptions& options) {
    catch_interrupts();
    DeviceRequest request;
    request.name = options.device;
    request.backend_options = options.backend_options;
    Device device = open_device(request);
    BenchReport report;
    report.caps = device_capabilities(device.get());
    Progress progress(ProgressStyle::bar_only);
    Bench bench{options, device.get(), (report.caps.flags & SH_DEVICE_VIRTUAL_TIME) != 0, {}, {}, nullptr, progress};
    const std::vector<Group> chosen = chosen_groups(options, report.caps);
    bench.extent =
        bench::choose_extent(report.caps, device_memory(device.get()).budget_bytes, read_host_limits(), options);
    progress.begin("link", 1, 1);
    bench.link = report.link = bench::measure_link(device.get(), bench.simulation);
    progress.clear();

    // The device is opened again, with the size of the models as its budget, which determines the pages, and with the
    // speed that was just measured, which plans then use.
    device.reset();
    request.name = report.caps.name;
    request.budget_bytes = bench.extent.model;
    request.link_bytes_per_second = static_cast<std::uint64_t>(bench.link.limit());
    device = open_device(request);
    bench.device = device.get();
    report.page_bytes = device_memory(device.get()).page_bytes;
    if (!options.json) {
        print(legible(terminal_of(stdout),
                      fmt::format("{}: {}; models of {}, pages of {}\n\n", report.caps.name, report.caps.description,
                                  model::format_bytes(bench.extent.model), model::format_bytes(report.page_bytes))));
        finish_output();
    }
    run_groups(chosen, bench, report);
    if (!options.json && interrupted() != 0) {
        print("interrupted: the tables show what was measured until then\n");
        finish_output();
    }
    if (options.json) {
        print(json_text(report, options));
        finish_output();
    }
    return interrupted() != 0 ? static_cast<int>(ExitCode::signalled) + interrupted() : 0;
}

}  // namespace stagehand::cli
