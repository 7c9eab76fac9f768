// Streams of the host backend leave no thread behind, and allocate nothing in a steady state.
#include <dirent.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "../count_allocations.h"
#include "host/host_backend.h"
#include "page.h"

namespace stagehand::host {
namespace {

// Returns the number of this process's threads that have the name of a stream's thread.
int stream_threads() {
    int count = 0;
    DIR* const tasks = opendir("/proc/self/task");
    while (const dirent* task = readdir(tasks)) {
        char name[32] = {};
        std::FILE* const file = std::fopen((std::string("/proc/self/task/") + task->d_name + "/comm").c_str(), "re");
        if (!file) continue;
        if (std::fgets(name, sizeof name, file) && std::string(name) == "sh-host-stream\n") ++count;
        std::fclose(file);
    }
    closedir(tasks);
    return count;
}

class HostStream : public testing::Test {
protected:
    void SetUp() override {
        sh_backend_device_info info = {};
        ASSERT_EQ(backend_.device_open(0, "capacity=1MiB", &device_, &info), SH_OK) << backend_.last_error();
    }
    void TearDown() override {
        if (device_) backend_.device_close(device_);
    }
    sh_stream stream() {
        sh_stream stream = 0;
        EXPECT_EQ(backend_.stream_create(device_, &stream), SH_OK);
        return stream;
    }

    const sh_backend& backend_ = *host_backend();
    sh_backend_device* device_ = nullptr;
};

TEST_F(HostStream, ThreadsEndWithTheirStreams) {
    const int before = stream_threads();
    const sh_stream first = stream(), second = stream();
    ASSERT_EQ(backend_.stream_synchronize(device_, first), SH_OK);
    ASSERT_EQ(backend_.stream_launch(device_, second, nullptr, nullptr, 1000), SH_OK);
    ASSERT_EQ(backend_.stream_synchronize(device_, second), SH_OK);
    ASSERT_EQ(backend_.stream_destroy(device_, first), SH_OK);
    EXPECT_LE(stream_threads(), before + 1);
    stream();
    backend_.device_close(device_);
    device_ = nullptr;
    EXPECT_EQ(stream_threads(), before);
}

TEST_F(HostStream, DestroyingOneCarriesOutWhatIsQueued) {
    std::atomic<int> calls{0};
    const sh_stream s = stream();
    const auto count = [](void* calls) { ++*static_cast<std::atomic<int>*>(calls); };
    for (int i = 0; i < 100; ++i) ASSERT_EQ(backend_.stream_launch(device_, s, count, &calls, 0), SH_OK);
    ASSERT_EQ(backend_.stream_destroy(device_, s), SH_OK);
    EXPECT_EQ(calls, 100);
}

TEST_F(HostStream, ASteadyStateAllocatesNothing) {
    std::vector<sh_backend_page> pages(4);
    uint64_t memory = 0;
    ASSERT_EQ(backend_.pages_create(device_, kPage, 4, pages.data()), SH_OK);
    ASSERT_EQ(backend_.range_reserve(device_, 4 * kPage, kPage, &memory), SH_OK);
    ASSERT_EQ(backend_.pages_map(device_, memory, kPage, 4, pages.data()), SH_OK);
    std::vector<char> host(4 * kPage);
    const sh_stream copies = stream(), compute = stream();
    sh_backend_event loaded = 0, used = 0;
    ASSERT_EQ(backend_.event_create(device_, 0, &loaded), SH_OK);
    ASSERT_EQ(backend_.event_create(device_, 1, &used), SH_OK);
    const auto issue = [&](int rounds) {
        sh_status worst = SH_OK;
        for (int i = 0; i < rounds; ++i) {
            uint32_t done = 0;
            for (const sh_status status : {
                     backend_.stream_wait_event(device_, copies, used),
                     backend_.copy_to_device(device_, copies, memory, host.data(), host.size()),
                     backend_.event_record(device_, loaded, copies),
                     backend_.stream_wait_event(device_, compute, loaded),
                     backend_.stream_launch(device_, compute, nullptr, nullptr, 0),
                     backend_.event_record(device_, used, compute),
                     backend_.event_query(device_, used, &done),
                 }) {
                worst = std::min(worst, status);
            }
        }
        return worst;
    };
    // The first round has more work in flight than any step: all of it is queued before any of it runs.
    std::atomic<bool> go{false};
    const auto wait = [](void* go) {
        while (!*static_cast<std::atomic<bool>*>(go)) std::this_thread::yield();
    };
    ASSERT_EQ(backend_.stream_launch(device_, copies, wait, &go, -1), SH_OK);
    EXPECT_EQ(issue(40), SH_OK);
    go = true;
    ASSERT_EQ(backend_.event_synchronize(device_, used), SH_OK);
    std::vector<int> one;
    test::allocations = 0;
    test::count_allocations = true;
    for (int i = 0; i < 50; ++i) {
        ASSERT_EQ(issue(20), SH_OK);
        ASSERT_EQ(backend_.event_synchronize(device_, used), SH_OK);
    }
    EXPECT_EQ(test::allocations, 0u);
    std::vector<int>(1).swap(one);
    EXPECT_EQ(test::allocations, 1u) << "allocations are not counted";
    test::count_allocations = false;
}

}  // namespace
}  // namespace stagehand::host
