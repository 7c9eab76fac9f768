#include "telemetry/snapshot.h"

#include <unistd.h>

#include <cstring>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace stagehand::telemetry {
namespace {

nlohmann::json parsed(const std::string& text) {
    EXPECT_EQ(text.find('\n'), text.size() - 1) << text;
    return nlohmann::json::parse(text);
}

// Sets each 64-bit field of a struct from `first` on to its number, so that a missing or doubled member shows.
template <class Struct>
Struct numbered(Struct empty, size_t first) {
    for (size_t at = first, value = 1000; at < sizeof empty; at += 8, value++) {
        const uint64_t number = value;
        std::memcpy(reinterpret_cast<char*>(&empty) + at, &number, 8);
    }
    return empty;
}

size_t figures_in(const nlohmann::json& json, uint64_t highest) {
    std::vector<bool> seen(highest + 1 - 1000);
    for (const auto& [name, value] : json.items())
        if (value.is_number_unsigned() && value.get<uint64_t>() >= 1000 && value.get<uint64_t>() <= highest)
            seen[value.get<uint64_t>() - 1000] = true;
    return static_cast<size_t>(std::count(seen.begin(), seen.end(), true));
}

TEST(SnapshotText, TellsEveryCounterOfARuntime) {
    Snapshot all;
    DeviceReading& device = all.devices.emplace_back();
    RuntimeReading& runtime = device.runtimes.emplace_back();
    runtime.id = 7;
    runtime.name = "model";
    runtime.clock_ns = 5;
    runtime.stats = numbered(sh_sized<sh_runtime_stats>(), offsetof(sh_runtime_stats, steps));
    const auto json = parsed(snapshot_text(all))["devices"][0]["runtimes"][0];
    const size_t count = (sizeof(sh_runtime_stats) - offsetof(sh_runtime_stats, steps)) / 8;
    EXPECT_EQ(figures_in(json, 999 + count), count);
    EXPECT_EQ(json["id"], 7);
    EXPECT_EQ(json["name"], "model");
    EXPECT_EQ(json["clock_ns"], 5);
    EXPECT_EQ(json["lost"], false);
    EXPECT_EQ(json["steps"], runtime.stats.steps);
    EXPECT_EQ(json["stall_ns"], runtime.stats.stall_ns);
    EXPECT_EQ(json["given_up_bytes"], runtime.stats.given_up_bytes);
    EXPECT_EQ(json["guest_bytes"], runtime.stats.guest_bytes);
    EXPECT_EQ(json["in_time"], runtime.stats.in_time);
    device.runtimes[0].stats.lost = 1;
    EXPECT_EQ(parsed(snapshot_text(all))["devices"][0]["runtimes"][0]["lost"], true);
}

TEST(SnapshotText, TellsTheSetsOfARuntimeThatHasThem) {
    Snapshot all;
    RuntimeReading& runtime = all.devices.emplace_back().runtimes.emplace_back();
    EXPECT_FALSE(parsed(snapshot_text(all))["devices"][0]["runtimes"][0].contains("sets"));
    SetReading& set = runtime.sets.emplace_back();
    set.name = "experts";
    set.info = numbered(sh_sized<sh_set_info>(), offsetof(sh_set_info, stride));
    set.groups = {{7, 5}, {8, 6}};
    const auto json = parsed(snapshot_text(all))["devices"][0]["runtimes"][0]["sets"][0];
    const size_t count = (sizeof(sh_set_info) - offsetof(sh_set_info, stride)) / 8;
    EXPECT_EQ(figures_in(json, 999 + count), count);
    EXPECT_EQ(json["name"], "experts");
    EXPECT_EQ(json["group_uses"], nlohmann::json({7, 8}));
    EXPECT_EQ(json["group_hits"], nlohmann::json({5, 6}));
    set.groups.resize(1025);
    EXPECT_FALSE(parsed(snapshot_text(all))["devices"][0]["runtimes"][0]["sets"][0].contains("group_uses"));
}

TEST(SnapshotText, TellsEveryFigureOfADevice) {
    Snapshot all;
    all.busy = 3;
    DeviceReading& device = all.devices.emplace_back();
    device.name = "host:0";
    device.memory = numbered(sh_sized<sh_memory_info>(), offsetof(sh_memory_info, budget_bytes));
    device.memory.runtime_count = 2;
    const auto document = parsed(snapshot_text(all));
    const auto& json = document["devices"][0];
    const size_t count = (sizeof(sh_memory_info) - offsetof(sh_memory_info, budget_bytes)) / 8;
    EXPECT_EQ(figures_in(json, 999 + count), count);
    EXPECT_EQ(json["budget_bytes"], device.memory.budget_bytes);
    EXPECT_EQ(json["headroom_bytes"], device.memory.headroom_bytes);
    EXPECT_EQ(json["runtime_count"], 2);
    EXPECT_TRUE(json["link_bytes_per_second"].is_null());
    EXPECT_FALSE(json.contains("error"));
    EXPECT_EQ(document["version"], kSnapshotVersion);
    EXPECT_EQ(document["library"], sh_version());
    EXPECT_EQ(document["pid"], getpid());
    EXPECT_EQ(document["busy"], 3);
    all.devices[0].link_bytes_per_second = 123;
    EXPECT_EQ(parsed(snapshot_text(all))["devices"][0]["link_bytes_per_second"], 123);
}

TEST(SnapshotText, SaysWhyADeviceCouldNotBeRead) {
    Snapshot all;
    all.devices.emplace_back().status = Status(SH_ERROR_BACKEND, "the driver \"says\" no");
    const auto json = parsed(snapshot_text(all))["devices"][0];
    EXPECT_EQ(json["error"], "the driver \"says\" no");
    EXPECT_FALSE(json.contains("budget_bytes"));
}

// The engine chooses names freely: quotes, line ends, control characters, invalid UTF-8. The document still is one line
// of valid JSON.
TEST(SnapshotText, AnyNameIsOneLineOfJson) {
    Snapshot all;
    DeviceReading& device = all.devices.emplace_back();
    for (const char* name :
         {"a \"b\" \\c", "line\nend\r\ttab", "\x1b[31mred", "caf\xc3\xa9 \xe2\x98\x95", "bad \xff\xc3 utf-8", ""}) {
        device.runtimes.emplace_back().name = name;
    }
    const auto json = parsed(snapshot_text(all))["devices"][0]["runtimes"];
    ASSERT_EQ(json.size(), 6u);
    EXPECT_EQ(json[0]["name"], "a \"b\" \\c");
    EXPECT_EQ(json[1]["name"], "line\nend\r\ttab");
    EXPECT_EQ(json[2]["name"], "\x1b[31mred");
    EXPECT_EQ(json[3]["name"], "caf\xc3\xa9 \xe2\x98\x95");
    EXPECT_EQ(json[4]["name"], "bad \xef\xbf\xbd\xef\xbf\xbd utf-8");
    EXPECT_EQ(json[5]["name"], "");
}

}  // namespace
}  // namespace stagehand::telemetry
