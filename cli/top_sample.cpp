#include "top_sample.h"

#include <algorithm>

#include <fmt/format.h>

#include "exit_code.h"
#include "model/text.h"

namespace stagehand::cli {

namespace {

constexpr std::uint64_t known_version = 1;

// Members may be missing, because an older library does not send them.
std::uint64_t count(const Json& json, const char* name) { return json.value(name, std::uint64_t{0}); }
std::string text(const Json& json, const char* name) { return json.value(name, std::string()); }

const Json& list(const Json& json, const char* name) {
    static const Json empty = Json::array();
    const auto found = json.find(name);
    if (found == json.end()) return empty;
    (void)found->get_ref<const Json::array_t&>();  // throws if it is not an array
    return *found;
}

RuntimeSample parse_runtime(const Json& json) {
    RuntimeSample runtime;
    runtime.name = text(json, "name");
    runtime.id = count(json, "id");
    runtime.clock_ns = count(json, "clock_ns");
    runtime.lost = json.value("lost", false);
    runtime.steps = count(json, "steps");
    runtime.hits = count(json, "hits");
    runtime.misses = count(json, "misses");
    runtime.bytes_to_device = count(json, "bytes_to_device");
    runtime.host_waits = count(json, "host_waits");
    runtime.stall_ns = count(json, "stall_ns");
    runtime.resident_bytes = count(json, "resident_bytes");
    runtime.ring_bytes = count(json, "ring_bytes");
    runtime.unordered_bytes = count(json, "unordered_bytes");
    runtime.held_bytes = count(json, "held_bytes");
    runtime.share_bytes = count(json, "share_bytes");
    runtime.protected_bytes = count(json, "protected_bytes");
    runtime.reserved_bytes = count(json, "reserved_bytes");
    runtime.guest_bytes = count(json, "guest_bytes");
    runtime.given_up_bytes = count(json, "given_up_bytes");
    return runtime;
}

DeviceSample parse_device(const Json& json) {
    DeviceSample device;
    device.name = text(json, "name");
    device.problem = text(json, "error");
    const auto link = json.find("link_bytes_per_second");
    device.link_bytes_per_second = link == json.end() || link->is_null() ? 0 : link->get<double>();
    device.budget_bytes = count(json, "budget_bytes");
    device.used_bytes = count(json, "used_bytes");
    device.free_bytes = count(json, "free_bytes");
    device.total_bytes = count(json, "total_bytes");
    device.reserved_bytes = count(json, "reserved_bytes");
    device.guest_bytes = count(json, "guest_bytes");
    device.protected_bytes = count(json, "protected_bytes");
    device.headroom_bytes = count(json, "headroom_bytes");
    for (const Json& runtime : list(json, "runtimes")) device.runtimes.push_back(parse_runtime(runtime));
    return device;
}

std::optional<double> per_second(std::uint64_t now, std::uint64_t before, double seconds) {
    if (seconds <= 0 || now < before) return std::nullopt;
    return static_cast<double>(now - before) / seconds;
}

std::optional<double> share_of(std::optional<double> rate, double whole) {
    return rate && whole > 0 ? std::optional<double>(*rate / whole) : std::nullopt;
}

void compare(RuntimeSample& now, const RuntimeSample& before, double link) {
    const double seconds =
        now.clock_ns > before.clock_ns ? static_cast<double>(now.clock_ns - before.clock_ns) / 1e9 : 0;
    now.steps_per_second = per_second(now.steps, before.steps, seconds);
    now.hits_per_second = per_second(now.hits, before.hits, seconds);
    now.misses_per_second = per_second(now.misses, before.misses, seconds);
    now.stalls_per_second = per_second(now.host_waits, before.host_waits, seconds);
    now.bytes_per_second = per_second(now.bytes_to_device, before.bytes_to_device, seconds);
    now.link_share = share_of(now.bytes_per_second, link);
    now.stall_share = share_of(per_second(now.stall_ns, before.stall_ns, seconds), 1e9);
}

const RuntimeSample* find(const std::vector<RuntimeSample>& runtimes, std::uint64_t id) {
    const auto found =
        std::find_if(runtimes.begin(), runtimes.end(), [&](const RuntimeSample& runtime) { return runtime.id == id; });
    return found == runtimes.end() ? nullptr : &*found;
}

void compare(DeviceSample& now, const DeviceSample& before, bool complete) {
    double sum = 0;
    for (RuntimeSample& runtime : now.runtimes) {
        const RuntimeSample* same = find(before.runtimes, runtime.id);
        same = same == nullptr ? find(before.unread, runtime.id) : same;
        if (same != nullptr) {
            compare(runtime, *same, now.link_bytes_per_second);
            sum += runtime.bytes_per_second.value_or(0);
        }
    }
    for (const auto* list : {&before.runtimes, &before.unread}) {
        for (const RuntimeSample& runtime : *list)
            if (!complete && find(now.runtimes, runtime.id) == nullptr) now.unread.push_back(runtime);
    }
    now.bytes_per_second = sum;
    now.link_share = share_of(sum, now.link_bytes_per_second);
}

Json to_json(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

}  // namespace

Sample parse_sample(const std::string& text_of_it, const std::string& process) {
    Sample sample;
    try {
        sample.document = Json::parse(text_of_it);
        const std::uint64_t version = count(sample.document, "version");
        if (version != known_version) {
            throw CommandError(
                ExitCode::device,
                fmt::format("{} answers with version {} of the document, but this command supports version {}", process,
                            version, known_version));
        }
        if (const std::string problem = text(sample.document, "error"); !problem.empty())
            throw CommandError(ExitCode::device, fmt::format("{} answers: {}", process, model::printable(problem)));
        sample.pid = sample.document.value("pid", std::int64_t{0});
        sample.program = text(sample.document, "program");
        const std::uint64_t library = count(sample.document, "library");
        sample.library = fmt::format("{}.{}.{}", library / 1000000, library / 1000 % 1000, library % 1000);
        sample.busy = count(sample.document, "busy");
        for (const Json& device : list(sample.document, "devices")) sample.devices.push_back(parse_device(device));
    } catch (const Json::exception& error) {
        throw CommandError(ExitCode::device, fmt::format("the answer of {} is not a document of libstagehand: {}",
                                                         process, model::printable(error.what())));
    }
    return sample;
}

void compare(Sample& now, const Sample& before) {
    for (DeviceSample& device : now.devices) {
        const auto same = std::find_if(before.devices.begin(), before.devices.end(),
                                       [&](const DeviceSample& other) { return other.name == device.name; });
        // Another process may now listen at the same path.
        if (same != before.devices.end() && now.pid == before.pid) compare(device, *same, now.busy == 0);
    }
}

Json with_rates(const Sample& sample, double interval) {
    Json document = sample.document;
    document["interval_seconds"] = interval;
    for (std::size_t d = 0; d < sample.devices.size(); ++d) {
        const DeviceSample& device = sample.devices[d];
        Json& to = document["devices"][d];
        to["bytes_to_device_per_second"] = to_json(device.bytes_per_second);
        to["link_share"] = to_json(device.link_share);
        for (std::size_t r = 0; r < device.runtimes.size(); ++r) {
            const RuntimeSample& runtime = device.runtimes[r];
            Json& of = to["runtimes"][r];
            of["steps_per_second"] = to_json(runtime.steps_per_second);
            of["hits_per_second"] = to_json(runtime.hits_per_second);
            of["misses_per_second"] = to_json(runtime.misses_per_second);
            of["bytes_to_device_per_second"] = to_json(runtime.bytes_per_second);
            of["link_share"] = to_json(runtime.link_share);
            of["stalls_per_second"] = to_json(runtime.stalls_per_second);
            of["stall_share"] = to_json(runtime.stall_share);
        }
    }
    return document;
}

}  // namespace stagehand::cli
