// Objects that are destroyed while other threads use them, forks and exits in the middle of work, and
// the errors for all of this.
#include <atomic>
#include <fstream>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include "engine.h"

namespace stagehand::test {
namespace {

TEST(Lifetime, blocks_go_when_the_work_on_the_runtimes_streams_has_ended) {
    SoloModel model({}, equal_blocks(2, 4 * kPage));
    const sh_stream stream = model.stream();
    std::atomic<bool> has_ended = false;
    model.acquire(1, stream);
    const auto end = [](void* ended) { *static_cast<std::atomic<bool>*>(ended) = true; };
    SUCCEEDS(sh_stream_launch(model.device(), stream, nullptr, nullptr, 50'000'000));
    SUCCEEDS(sh_stream_launch(model.device(), stream, end, &has_ended, 0));
    model.release(1, stream);
    const sh_block other = model.id(0);
    SUCCEEDS(sh_unregister_blocks(model.runtime(), &other, 1));
    EXPECT_TRUE(has_ended);
}

// Other threads are in all kinds of calls when the runtime is destroyed.
TEST(Handles, a_runtime_is_destroyed_while_others_use_it) {
    for (int round = 0; round < 10; round++) {
        DeviceSettings slow{.budget_bytes = 12 * kPage};
        slow.options += ";latency=200us";
        SoloModel model(slow, equal_blocks(8, 4 * kPage, round % 2 ? Origin::pageable : Origin::pinned), forward(8));
        std::vector<std::thread> threads;
        sh_runtime* const runtime = model.runtime();
        std::atomic<int> uses{0};
        for (size_t t = 0; t < 3; t++) {
            threads.emplace_back([&, t] {
                for (size_t k = t;; k++) {
                    auto view = sh_sized<sh_view>();
                    const sh_status status = sh_acquire(runtime, model.id(k % 8), SH_STREAM_HOST, 0, &view);
                    if (status == SH_ERROR_INVALID_HANDLE || status == SH_ERROR_CANCELLED) return;
                    EXPECT_TRUE(status == SH_OK || status == SH_ERROR_HELD) << why();
                    uses++;
                    if (status == SH_OK) ignore(sh_release(runtime, model.id(k % 8), SH_STREAM_HOST));
                }
            });
        }
        while (uses < 20) std::this_thread::yield();
        model.destroy();
        for (std::thread& thread : threads) thread.join();
        EXPECT_EQ(model.memory().used_bytes, 0u);
    }
}

// Runs `work` in a child process that exits by itself.
int in_child(const std::function<void()>& work) {
    const pid_t child = fork();
    if (child == 0) {
        work();
        _exit(99);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(Process, a_forked_child_is_told) {
    SoloModel model({}, equal_blocks(4, 3 * kPage, Origin::pageable));
    SUCCEEDS(model.step(forward(4)));
    EXPECT_EQ(in_child([&] {
                  auto view = sh_sized<sh_view>();
                  auto info = sh_sized<sh_memory_info>();
                  sh_device* again = nullptr;
                  const bool told =
                      sh_step_begin(model.runtime(), nullptr) == SH_ERROR_FORKED &&
                      sh_acquire(model.runtime(), model.id(0), SH_STREAM_HOST, 0, &view) == SH_ERROR_FORKED &&
                      sh_device_get_memory(model.device(), &info) == SH_ERROR_FORKED &&
                      sh_device_open("host", nullptr, &again) == SH_ERROR_FORKED;
                  sh_runtime_destroy(model.runtime());
                  sh_device_close(model.device());
                  _exit(told ? 0 : 1);
              }),
              0);
    SUCCEEDS(model.step(forward(4)));
}

// Objects that a program leaves open when it exits are no leak, although a sanitizer cannot see all references to them.
void leave_open() {
#if defined(__SANITIZE_ADDRESS__)
    __lsan_disable();
#endif
}

TEST(Process, exits_with_copies_in_flight) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    for (const Origin origin : {Origin::pinned, Origin::pageable}) {
        EXPECT_EXIT(
            {
                leave_open();
                DeviceSettings slow{.budget_bytes = 12 * kPage};
                slow.options += ";latency=2ms";
                static auto* device = new TestDevice(slow);
                static auto* model = new Model(*device, equal_blocks(8, 4 * kPage, origin));
                (void)model->schedule(forward(8));
                ignore(sh_step_begin(model->runtime(), nullptr));
                for (size_t i = 0; i < 3; i++) (void)model->use(i, device->stream(), 0, 1000000);
                std::exit(0);
            },
            testing::ExitedWithCode(0), "");
    }
}

nlohmann::json read_json(const std::string& path) {
    std::ifstream file(path);
    return nlohmann::json::parse(file);
}

TEST(Telemetry, one_object_a_step) {
    const std::string path = "telemetry-" + std::to_string(getpid()) + ".jsonl";
    SoloModel model({.budget_bytes = 12 * kPage}, equal_blocks(8, 4 * kPage), forward(8));
    sh_scope* lines_of_steps = nullptr;
    SUCCEEDS(sh_telemetry_start(model.runtime(), nullptr, path.c_str(), &lines_of_steps));
    for (int k = 0; k < 5; k++) SUCCEEDS(model.step(forward(8)));
    SUCCEEDS(sh_scope_end(lines_of_steps));
    SUCCEEDS(model.step(forward(8)));
    std::ifstream file(path);
    std::string line;
    int lines = 0;
    uint64_t bytes = 0, in_time = 0;
    while (std::getline(file, line)) {
        const auto object = nlohmann::json::parse(line);
        ASSERT_TRUE(object.is_object());
        lines++;
        if (object.contains("bytes_to_device")) bytes += object["bytes_to_device"].get<uint64_t>();
        EXPECT_EQ(object["resident_bytes"], model.stats().resident_bytes);
        EXPECT_EQ(object["ring_bytes"], model.stats().ring_bytes);
        EXPECT_LE(object["in_time"], object["hits"]);
        in_time += object["in_time"].get<uint64_t>();
    }
    EXPECT_LE(in_time, model.stats().in_time);
    EXPECT_GT(model.stats().ring_bytes, 0u);
    EXPECT_EQ(lines, 5);
    EXPECT_GT(bytes, 0u);
    unlink(path.c_str());
}

// The report of a run needs no other file.
TEST(Telemetry, the_first_line_and_each_new_plan_describe_the_plan) {
    const std::string path = "telemetry-plan-" + std::to_string(getpid()) + ".jsonl";
    SoloModel model({.budget_bytes = 12 * kPage}, equal_blocks(8, 4 * kPage));
    SUCCEEDS(model.schedule(forward(8), 1000000));
    sh_scope* lines_of_steps = nullptr;
    SUCCEEDS(sh_telemetry_start(model.runtime(), nullptr, path.c_str(), &lines_of_steps));
    for (int k = 0; k < 3; k++) SUCCEEDS(model.step(forward(8)));
    SUCCEEDS(model.schedule(forward(6), 2000000));
    for (int k = 0; k < 2; k++) SUCCEEDS(model.step(forward(6)));
    SUCCEEDS(sh_scope_end(lines_of_steps));
    std::vector<nlohmann::json> lines;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    ASSERT_EQ(lines.size(), 5u);
    for (const size_t without : {1, 2, 4}) EXPECT_FALSE(lines[without].contains("plan")) << without;
    for (const nlohmann::json& line : lines) EXPECT_EQ(line["share_bytes"], 12 * kPage);
    const nlohmann::json &first = lines[0].at("plan"), &second = lines[3].at("plan");
    EXPECT_EQ(first["version"], 1);
    EXPECT_EQ(first["budget_bytes"], 12 * kPage);
    EXPECT_EQ(first["model_bytes"], 32 * kPage);
    ASSERT_EQ(first["blocks"].size(), 8u);
    uint64_t resident = 0;
    for (const nlohmann::json& block : first["blocks"]) {
        EXPECT_EQ(block["bytes"], 4 * kPage);
        EXPECT_EQ(block["resident_bytes"].get<uint64_t>() + block["streamed_bytes"].get<uint64_t>(), 4 * kPage);
        resident += block["resident_bytes"].get<uint64_t>();
    }
    EXPECT_EQ(first["blocks"][3]["name"], "block 3");
    EXPECT_EQ(first["resident_bytes"], resident);
    ASSERT_EQ(first["uses"].size(), 8u);
    EXPECT_EQ(first["uses"][7]["block"], 7);
    EXPECT_DOUBLE_EQ(first["uses"][7]["compute_ms"], 1);
    EXPECT_EQ(second["uses"].size(), 6u);
    EXPECT_TRUE(second["blocks"][7].value("unordered", false));
    EXPECT_EQ(unlink(path.c_str()), 0);
}

// Plans that keep changing must not fill a disk.
TEST(Telemetry, lists_blocks_in_64_plans_of_a_file) {
    const std::string path = "telemetry-lists-" + std::to_string(getpid()) + ".jsonl";
    SoloModel model({.budget_bytes = 12 * kPage}, equal_blocks(8, 4 * kPage));
    sh_scope* lines_of_steps = nullptr;
    SUCCEEDS(sh_telemetry_start(model.runtime(), nullptr, path.c_str(), &lines_of_steps));
    for (size_t k = 0; k < 70; k++) {
        SUCCEEDS(model.schedule(forward(7 + k % 2), 1000));
        SUCCEEDS(model.step(forward(7 + k % 2)));
    }
    SUCCEEDS(sh_scope_end(lines_of_steps));
    std::ifstream file(path);
    size_t plans = 0, lists = 0;
    for (std::string line; std::getline(file, line);) {
        const auto object = nlohmann::json::parse(line);
        plans += object.contains("plan");
        lists += object.contains("plan") && object["plan"].contains("blocks");
    }
    EXPECT_EQ(plans, 70u);
    EXPECT_EQ(lists, 64u);
    EXPECT_EQ(unlink(path.c_str()), 0);
}

TEST(Telemetry, the_trace_is_json) {
    const std::string path = "trace-" + std::to_string(getpid()) + ".json";
    sh_scope* trace_scope = nullptr;
    SUCCEEDS(sh_trace_start(path.c_str(), &trace_scope));
    {
        SoloModel model({.budget_bytes = 12 * kPage}, equal_blocks(8, 4 * kPage, Origin::pageable), forward(8));
        for (int k = 0; k < 3; k++) SUCCEEDS(model.step(forward(8)));
    }
    SUCCEEDS(sh_scope_end(trace_scope));
    const auto trace = read_json(path);
    const auto& events = trace.is_array() ? trace : trace["traceEvents"];
    EXPECT_GT(events.size(), 10u);
    for (const auto& event : events) {
        EXPECT_TRUE(event.contains("ph") && event.contains("name"));
        EXPECT_LT(event.value("dur", 0.0), 3.6e9) << event << ": one that ends before it begins lasts for centuries";
    }
    unlink(path.c_str());
}

}  // namespace
}  // namespace stagehand::test
