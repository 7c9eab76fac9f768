// The trace as Perfetto's importer reads it: no slice of a thread overlaps another slice of that thread in part.
#include "telemetry/trace.h"

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace stagehand::telemetry {
namespace {

struct Slice {
    std::string name;
    int64_t begin_ns;
    int64_t end_ns;
};

// A trace of the events that a test records, read back.
class Trace : public testing::Test {
protected:
    void SetUp() override { ASSERT_TRUE(trace_start(path_.c_str()).ok()); }
    void TearDown() override { unlink(path_.c_str()); }

    // Ends the trace and fills in what it holds.
    void read() {
        ASSERT_TRUE(trace_stop().ok());
        std::ifstream file(path_);
        const nlohmann::json trace = nlohmann::json::parse(file);
        for (const auto& event : trace["traceEvents"]) {
            const std::string kind = event["ph"];
            const int process = event["pid"], thread = event.value("tid", 0);
            if (kind == "M" && event["name"] == "thread_name") {
                EXPECT_TRUE(names_[process].emplace(thread, event["args"]["name"]).second) << event;
            } else if (kind == "X") {
                const int64_t begin = std::llround(event["ts"].get<double>() * 1e3);
                slices_[process][thread].push_back(
                    {event["name"], begin, begin + std::llround(event["dur"].get<double>() * 1e3)});
            }
        }
    }

    void expect_no_overlap() {
        for (const auto& [process, threads] : slices_) {
            for (const auto& [thread, slices] : threads) {
                EXPECT_TRUE(names_[process].count(thread)) << "thread " << thread << " has no name";
                for (size_t i = 0; i < slices.size(); i++)
                    for (size_t j = 0; j < i; j++)
                        EXPECT_TRUE(slices[i].begin_ns >= slices[j].end_ns || slices[j].begin_ns >= slices[i].end_ns)
                            << slices[i].name << " overlaps " << slices[j].name << " on " << names_[process][thread];
            }
        }
    }

    // The names of the threads of process 1 that have slices.
    std::set<std::string> used() {
        std::set<std::string> result;
        for (const auto& [thread, slices] : slices_[1]) result.insert(names_[1][thread]);
        return result;
    }

    size_t count() {
        size_t result = 0;
        for (const auto& [thread, slices] : slices_[1]) result += slices.size();
        return result;
    }

    std::string path_ = "trace-unit-" + std::to_string(getpid()) + ".json";
    std::map<int, std::map<int, std::string>> names_;
    std::map<int, std::map<int, std::vector<Slice>>> slices_;
};

TEST_F(Trace, SlicesThatFollowEachOtherShareAThread) {
    for (uint64_t i = 0; i < 5; i++) trace_load("model", "block", 1000 * i, 1000 * (i + 1), 4096, 1);
    read();
    expect_no_overlap();
    EXPECT_EQ(count(), 5u);
    EXPECT_EQ(used(), std::set<std::string>{"loads"});
}

TEST_F(Trace, SlicesThatOverlapGetThreadsOfTheirOwn) {
    // Begun one after the other, ended one after the other: each overlaps the next in part.
    for (uint64_t i = 0; i < 6; i++) {
        trace_load("model", "load", 1000 * i, 1000 * i + 2500, 4096, 1);
        trace_view("model", "view", 1000 * i, 1000 * i + 1500);
    }
    trace_load("model", "inside another", 6000, 6100, 1, 1);
    trace_wait("model", "of one thread", 0, 1000);
    trace_wait("model", "of another thread", 500, 1200);
    read();
    expect_no_overlap();
    EXPECT_EQ(count(), 6u + 6u + 3u);
    EXPECT_EQ(used(), (std::set<std::string>{"loads", "loads 2", "loads 3", "views", "views 2", "waits", "waits 2"}));
}

TEST_F(Trace, SlicesOfOneMomentAreKept) {
    for (int i = 0; i < 3; i++) trace_write_back("model", "block", 77, 1);
    read();
    expect_no_overlap();
    EXPECT_EQ(count(), 3u);
}

TEST_F(Trace, PausesAndResumesAreOnATrackOfTheDevice) {
    const char* const tags[] = {"kv_cache", "weights"};
    trace_occupancy("host:0", {false, tags, 1000, 3000, 4096, 1024});
    trace_occupancy("host:0", {true, {tags, 1}, 5000, 6000, 2048, 0});
    read();
    expect_no_overlap();
    ASSERT_EQ(slices_[1].size(), 1u);
    const auto& [thread, slices] = *slices_[1].begin();
    EXPECT_EQ(names_[1][thread], "pauses and resumes");
    ASSERT_EQ(slices.size(), 2u);
    EXPECT_EQ(slices[0].name, "pause kv_cache, weights");
    EXPECT_EQ(slices[0].end_ns - slices[0].begin_ns, 2000);
    EXPECT_EQ(slices[1].name, "resume kv_cache");
}

}  // namespace
}  // namespace stagehand::telemetry
