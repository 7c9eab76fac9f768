#include "top_sample.h"

#include <algorithm>

#include <fmt/format.h>

#include "exit_code.h"
#include "model/text.h"

namespace stagehand::cli {

namespace {

constexpr std::uint64_t document_version = 1;

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
    runtime.lost = json.value("lost", false);
    runtime.figures = {json,
                       {"id", "clock_ns", "steps", "hits", "misses", "bytes_to_device", "host_waits", "stall_ns",
                        "resident_bytes", "ring_bytes", "unordered_bytes", "held_bytes", "share_bytes",
                        "protected_bytes", "reserved_bytes", "guest_bytes", "given_up_bytes"}};
    for (const Json& set : list(json, "sets")) {
        runtime.sets.push_back(
            {text(set, "name"), {set, {"members", "slots", "uses", "hits", "evictions"}}, {}, {}, {}});
    }
    return runtime;
}

DeviceSample parse_device(const Json& json) {
    DeviceSample device;
    device.name = text(json, "name");
    device.problem = text(json, "error");
    const auto link = json.find("link_bytes_per_second");
    device.link_bytes_per_second = link == json.end() || link->is_null() ? 0 : link->get<double>();
    device.figures = {json,
                      {"budget_bytes", "used_bytes", "free_bytes", "total_bytes", "reserved_bytes", "guest_bytes",
                       "protected_bytes", "headroom_bytes"}};
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
    const std::uint64_t from = before.figures["clock_ns"], to = now.figures["clock_ns"];
    const double seconds = to > from ? static_cast<double>(to - from) / 1e9 : 0;
    const auto rate = [&](const char* name) { return per_second(now.figures[name], before.figures[name], seconds); };
    now.steps_per_second = rate("steps");
    now.hits_per_second = rate("hits");
    now.misses_per_second = rate("misses");
    now.stalls_per_second = rate("host_waits");
    now.bytes_per_second = rate("bytes_to_device");
    now.link_share = share_of(now.bytes_per_second, link);
    now.stall_share = share_of(rate("stall_ns"), 1e9);
    for (std::size_t i = 0; i < now.sets.size() && now.sets.size() == before.sets.size(); ++i) {
        SetSample& set = now.sets[i];
        const auto set_rate = [&](const char* name) {
            return per_second(set.figures[name], before.sets[i].figures[name], seconds);
        };
        set.uses_per_second = set_rate("uses");
        set.evictions_per_second = set_rate("evictions");
        set.hit_share = share_of(set_rate("hits"), set.uses_per_second.value_or(0));
    }
}

const RuntimeSample* find(const std::vector<RuntimeSample>& runtimes, std::uint64_t id) {
    const auto found = std::find_if(runtimes.begin(), runtimes.end(),
                                    [&](const RuntimeSample& runtime) { return runtime.figures["id"] == id; });
    return found == runtimes.end() ? nullptr : &*found;
}

void compare(DeviceSample& now, const DeviceSample& before, bool complete) {
    double sum = 0;
    for (RuntimeSample& runtime : now.runtimes) {
        const RuntimeSample* same = find(before.runtimes, runtime.figures["id"]);
        same = same == nullptr ? find(before.unread, runtime.figures["id"]) : same;
        if (same != nullptr) {
            compare(runtime, *same, now.link_bytes_per_second);
            sum += runtime.bytes_per_second.value_or(0);
        }
    }
    for (const auto* list : {&before.runtimes, &before.unread}) {
        for (const RuntimeSample& runtime : *list)
            if (!complete && find(now.runtimes, runtime.figures["id"]) == nullptr) now.unread.push_back(runtime);
    }
    now.bytes_per_second = sum;
    now.link_share = share_of(sum, now.link_bytes_per_second);
}

Json to_json(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

}  // namespace

Figures::Figures(const Json& json, std::initializer_list<const char*> names) {
    for (const char* name : names) values_[name] = count(json, name);
}

Sample parse_sample(const std::string& text_of_it, const std::string& process) {
    Sample sample;
    try {
        sample.document = Json::parse(text_of_it);
        const std::uint64_t version = count(sample.document, "version");
        if (version != document_version) {
            throw CommandError(
                ExitCode::device,
                fmt::format("{} answers with version {} of the document, but this command supports version {}", process,
                            version, document_version));
        }
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
