// `stagehand devices`: shows every backend, found or not, with its devices and the speeds of their copies.
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "copy_speed.h"
#include "host_limits.h"
#include "json_output.h"
#include "library.h"
#include "model/quantity.h"
#include "options.h"
#include "table.h"
#include "terminal.h"
#include "topology.h"
#include "units.h"

namespace stagehand::cli {

namespace {

// One device. `problem` is set if the device could not be opened or measured.
struct DeviceReport {
    std::string name;
    std::string problem;
    sh_device_caps caps = sh_sized<sh_device_caps>();
    sh_memory_info memory = sh_sized<sh_memory_info>();
    std::optional<CopySpeed> speed;
    BusPlace place;
    std::vector<std::string> shares;  // "0000:16:00.0 with cuda:1": bridges whose link to the host it shares
};

std::vector<sh_backend_info> list_backends() {
    std::uint64_t count = 0;
    check(sh_backend_list(nullptr, 0, &count), "backends");
    auto empty = sh_sized<sh_backend_info>();
    std::vector<sh_backend_info> infos(count, empty);
    check(sh_backend_list(infos.data(), infos.size(), &count), "backends");
    infos.resize(std::min(count, infos.size()));
    return infos;
}

DeviceReport inspect(const std::string& name) {
    DeviceReport report;
    report.name = name;
    try {
        DeviceRequest request;
        request.name = name;
        const Device device = open_device(request);
        report.caps = device_capabilities(device.get());
        report.memory = device_memory(device.get());
        report.place = find_bus_place(report.caps.bus_id);
        report.speed = measure_copy_speed(device.get());
    } catch (const LibraryError& error) {
        report.problem = error.what();
    }
    return report;
}

std::vector<DeviceReport> inspect_all(const sh_backend_info& backend) {
    std::vector<DeviceReport> reports;
    for (std::uint32_t i = 0; backend.status == SH_OK && i < backend.device_count; ++i) {
        reports.push_back(inspect(fmt::format("{}:{}", backend.name, i)));
        if (reports.back().caps.kind == SH_DEVICE_KIND_HOST) break;  // its other devices are the same memory once more
    }
    for (DeviceReport& device : reports) {
        for (const DeviceReport& other : reports) {
            const std::string bridge = &device == &other ? "" : shared_bridge(device.place, other.place);
            if (!bridge.empty()) device.shares.push_back(fmt::format("{} with {}", bridge, other.name));
        }
    }
    return reports;
}

// As the driver says, else as the system does.
std::optional<int> node_of(const DeviceReport& device) {
    return device.caps.host_node != 0 ? std::optional<int>(static_cast<int>(device.caps.host_node) - 1)
                                      : device.place.numa_node;
}

Json to_json(const DeviceReport& device) {
    const auto flag = [&](std::uint32_t bit) { return (device.caps.flags & bit) != 0; };
    Json json = {{"name", device.name}, {"works", device.problem.empty()}};
    if (!device.problem.empty()) json["reason"] = device.problem;
    if (device.caps.granularity_bytes == 0) return json;  // the device could not be opened
    json["description"] = device.caps.description;
    json["total_bytes"] = device.memory.total_bytes;
    json["free_bytes"] = device.memory.free_bytes;
    json["budget_bytes"] = device.memory.budget_bytes;
    json["granularity_bytes"] = device.caps.granularity_bytes;
    json["page_bytes"] = device.caps.page_bytes;
    json["staging_threads"] = device.caps.staging_threads;
    json["staging_piece_bytes"] = device.caps.staging_piece_bytes;
    json["fixed_addresses"] = flag(SH_DEVICE_FIXED_ADDRESSES);
    json["host_addressable"] = flag(SH_DEVICE_HOST_ADDRESSABLE);
    json["virtual_time"] = flag(SH_DEVICE_VIRTUAL_TIME);
    json["gpu"] = flag(SH_DEVICE_IS_GPU);
    const std::optional<int> node = node_of(device);
    json["numa_node"] = node ? Json(*node) : Json(nullptr);
    json["bus_id"] = device.caps.bus_id[0] != '\0' ? Json(device.caps.bus_id) : Json(nullptr);
    json["bridges"] = device.place.bridges;
    json["shares"] = device.shares;
    if (device.speed) {
        json["to_device_bytes_per_second"] = device.speed->to_device_bytes_per_second;
        json["to_host_bytes_per_second"] = device.speed->to_host_bytes_per_second;
        json["copy_bytes"] = device.speed->bytes;
        json["pinned"] = device.speed->pinned;
    }
    return json;
}

Json to_json(const std::optional<std::uint64_t>& limit) { return limit ? Json(*limit) : Json(nullptr); }

Json to_json(const HostLimits& limits) {
    return {
        {"total_bytes", limits.total_bytes},
        {"available_bytes", limits.available_bytes},
        {"memlock_soft_bytes", to_json(limits.memlock_soft_bytes)},
        {"memlock_hard_bytes", to_json(limits.memlock_hard_bytes)},
        {"cgroup", limits.cgroup.empty() ? Json(nullptr) : Json(limits.cgroup)},
        {"cgroup_limit_bytes", to_json(limits.cgroup_limit_bytes)},
        {"cgroup_used_bytes", to_json(limits.cgroup_used_bytes)},
    };
}

std::string version_text() {
    const std::uint32_t version = sh_version();
    return fmt::format("{}.{}.{}", version / 1000000, version / 1000 % 1000, version % 1000);
}

std::string features(const sh_device_caps& caps) {
    std::vector<std::string> words;
    if ((caps.flags & SH_DEVICE_VIRTUAL_TIME) != 0) words.push_back("a simulation in virtual time");
    words.push_back((caps.flags & SH_DEVICE_FIXED_ADDRESSES) != 0 ? "fixed addresses" : "addresses change");
    if ((caps.flags & SH_DEVICE_HOST_ADDRESSABLE) != 0) words.push_back("the host can access its memory");
    return fmt::format("{}", fmt::join(words, ", "));
}

void print_device(const Terminal& terminal, const DeviceReport& device) {
    Facts facts;
    if (device.caps.granularity_bytes != 0) {
        facts.add("device", device.name, device.caps.description);
        facts.add(
            "memory", model::format_bytes(device.memory.total_bytes),
            fmt::format("{} free, of which the automatic budget is {}", model::format_bytes(device.memory.free_bytes),
                        model::format_bytes(device.memory.budget_bytes)));
        facts.add("pages", model::format_bytes(device.caps.granularity_bytes),
                  "and multiples; " + features(device.caps));
        facts.add("staging", counted(device.caps.staging_threads, "thread"),
                  fmt::format("pieces of {}", model::format_bytes(device.caps.staging_piece_bytes)));
    }
    if (device.caps.bus_id[0] != '\0') {
        const std::optional<int> node = node_of(device);
        std::vector<std::string> words;
        if (node) words.push_back(fmt::format("NUMA node {}", *node));
        if (!device.place.bridges.empty())
            words.push_back(fmt::format("behind {}", fmt::join(device.place.bridges, ", ")));
        facts.add("bus", device.caps.bus_id, fmt::format("{}", fmt::join(words, ", ")));
        if (!device.shares.empty()) facts.add("shares", fmt::format("{}", fmt::join(device.shares, ", ")));
    }
    if (device.speed) {
        facts.add("to device", model::format_rate(device.speed->to_device_bytes_per_second),
                  fmt::format("the fastest of several copies of {}", model::format_bytes(device.speed->bytes)));
        facts.add("to host", model::format_rate(device.speed->to_host_bytes_per_second));
        facts.add("pinning", device.speed->pinned ? "works" : "refused",
                  fmt::format("{} in one allocation", model::format_bytes(device.speed->bytes)));
    }
    if (!device.problem.empty())
        facts.add(device.caps.granularity_bytes != 0 ? "problem" : "device", device.problem, "", Ink::bad);
    print(facts.text(terminal));
}

void print_backend(const Terminal& terminal, const sh_backend_info& backend, const std::vector<DeviceReport>& devices) {
    const std::string where = backend.built_in != 0                  ? "built in"
                              : backend.path[0] != '\0'              ? backend.path
                              : backend.status == SH_ERROR_NOT_FOUND ? "not found"
                                                                     : "cannot be loaded";
    const bool works = backend.status == SH_OK;
    const bool absent = !works && backend.built_in == 0 && backend.path[0] == '\0';
    print(fmt::format("{}  {}{}\n", inked(terminal, Ink::bold, backend.name),
                      inked(terminal, absent ? Ink::bad : Ink::dim, where),
                      absent  ? ""
                      : works ? "  " + inked(terminal, Ink::good, counted(backend.device_count, "device"))
                              : "  " + inked(terminal, Ink::bad, "does not work")));
    if (!works)
        print(fmt::format("  {}\n", backend.reason[0] != '\0' ? backend.reason : sh_status_string(backend.status)));
    for (const DeviceReport& device : devices) print_device(terminal, device);
    print("\n");
}

std::string limit_text(const std::optional<std::uint64_t>& limit) {
    return limit ? model::format_bytes(*limit) : "unlimited";
}

void print_limits(const Terminal& terminal, const HostLimits& limits) {
    print(inked(terminal, Ink::bold, "host memory") + "\n");
    Facts facts;
    facts.add("memory", model::format_bytes(limits.total_bytes),
              fmt::format("{} available", model::format_bytes(limits.available_bytes)));
    facts.add("locked memory", limit_text(limits.memlock_soft_bytes),
              fmt::format("soft limit (RLIMIT_MEMLOCK); hard limit {}", limit_text(limits.memlock_hard_bytes)));
    facts.add("control group", limit_text(limits.cgroup_limit_bytes),
              limits.cgroup_limit_bytes
                  ? fmt::format(
                        "set by {}, {} in use", limits.cgroup,
                        limits.cgroup_used_bytes ? model::format_bytes(*limits.cgroup_used_bytes) : "an unknown amount")
                  : "");
    print(facts.text(terminal));
}

}  // namespace

int devices_command(const DevicesOptions& options) {
    const std::vector<sh_backend_info> backends = list_backends();
    const Terminal terminal = terminal_of(stdout);
    Json list = Json::array();
    if (!options.json) print(fmt::format("libstagehand {}\n\n", version_text()));
    for (const sh_backend_info& backend : backends) {
        const std::vector<DeviceReport> devices = inspect_all(backend);
        if (!options.json) {
            print_backend(terminal, backend, devices);
            continue;
        }
        Json entry = {{"name", backend.name},
                      {"works", backend.status == SH_OK},
                      {"status", sh_status_string(backend.status)},
                      {"built_in", backend.built_in != 0},
                      {"path", backend.path},
                      {"reason", backend.reason},
                      {"devices", Json::array()}};
        for (const DeviceReport& device : devices) entry["devices"].push_back(to_json(device));
        list.push_back(std::move(entry));
    }
    if (options.json)
        print(to_text({{"version", version_text()}, {"backends", list}, {"host", to_json(read_host_limits())}}));
    else
        print_limits(terminal, read_host_limits());
    finish_output();
    return 0;
}

}  // namespace stagehand::cli
