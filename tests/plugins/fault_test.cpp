// The fault backend: the library finds and loads it as a plugin, and it counts calls and makes chosen calls fail.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "fault/fault.h"
#include "plugins/backends.h"

namespace {

class Fault : public testing::Test {
protected:
    void SetUp() override {
        std::string path;
        const stagehand::Status status = stagehand::plugins::find_backend("fault", nullptr, &backend_, &path);
        ASSERT_TRUE(status.ok()) << status.text();
        void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
        ASSERT_NE(library, nullptr) << dlerror();
        load(library, "sh_fault_arm", &arm_);
        load(library, "sh_fault_disarm", &disarm_);
        load(library, "sh_fault_counters", &counters_);
        load(library, "sh_fault_call_name", &call_name_);
        load(library, "sh_fault_call_count", &call_count_);
        load(library, "sh_fault_success_count", &success_count_);
    }
    void TearDown() override {
        if (device_) backend_->device_close(device_);
    }

    sh_status open(const char* options) { return backend_->device_open(0, options, &device_, &info_); }
    sh_status pages() {
        uint64_t free = 0, total = 0;
        return backend_->memory_info(device_, &free, &total);
    }
    sh_status arm(const char* call, uint64_t at, uint64_t count = 1, sh_status status = 0) {
        const sh_fault_plan plan = {sizeof plan, status, call, at, count};
        return arm_(&plan);
    }
    sh_fault_counters_info counters() {
        sh_fault_counters_info info = {};
        info.struct_size = sizeof info;
        EXPECT_EQ(counters_(&info), SH_OK);
        return info;
    }

    template <class Function>
    static void load(void* library, const char* name, Function** out) {
        *out = reinterpret_cast<Function*>(dlsym(library, name));
        ASSERT_NE(*out, nullptr) << name;
    }

    const sh_backend* backend_ = nullptr;
    sh_backend_device* device_ = nullptr;
    sh_backend_device_info info_ = {};
    decltype(sh_fault_arm)* arm_ = nullptr;
    decltype(sh_fault_disarm)* disarm_ = nullptr;
    decltype(sh_fault_counters)* counters_ = nullptr;
    decltype(sh_fault_call_name)* call_name_ = nullptr;
    decltype(sh_fault_call_count)* call_count_ = nullptr;
    decltype(sh_fault_success_count)* success_count_ = nullptr;
};

TEST_F(Fault, FailsTheNthCallOnce) {
    ASSERT_EQ(open("fail_at=3"), SH_OK) << backend_->last_error();
    EXPECT_EQ(pages(), SH_OK);
    EXPECT_EQ(pages(), SH_ERROR_BACKEND);
    EXPECT_NE(std::strstr(backend_->last_error(), "memory_info: the fault backend made this call fail"), nullptr)
        << backend_->last_error();
    EXPECT_EQ(pages(), SH_OK);
    EXPECT_EQ(counters().calls, 4u);
    EXPECT_EQ(counters().failures, 1u);
    EXPECT_EQ(counters().open, 1u);
    EXPECT_STREQ(call_name_(1), "device_open");
    EXPECT_STREQ(call_name_(4), "memory_info");
    EXPECT_EQ(call_name_(0), nullptr);
    EXPECT_EQ(call_name_(5), nullptr);
}

TEST_F(Fault, FailsTheOpening) {
    EXPECT_EQ(open("fail_at=1;fail_status=-502"), SH_ERROR_DEVICE_LOST);
    EXPECT_EQ(counters().calls, 1u);
    EXPECT_EQ(counters().open, 0u);
    EXPECT_EQ(device_, nullptr);
}

TEST_F(Fault, FailsOnlyTheCallThatIsNamed) {
    ASSERT_EQ(open("fail_call=stream_create;fail_at=2;fail_count=2;fail_status=-203"), SH_OK);
    sh_stream streams[4] = {};
    EXPECT_EQ(pages(), SH_OK);
    EXPECT_EQ(backend_->stream_create(device_, &streams[0]), SH_OK);
    EXPECT_EQ(pages(), SH_OK);
    EXPECT_EQ(backend_->stream_create(device_, &streams[1]), SH_ERROR_OUT_OF_HOST_MEMORY);
    EXPECT_EQ(streams[1], 0u) << "the wrapped backend was called";
    EXPECT_EQ(backend_->stream_create(device_, &streams[2]), SH_ERROR_OUT_OF_HOST_MEMORY);
    EXPECT_EQ(backend_->stream_create(device_, &streams[3]), SH_OK);
    EXPECT_EQ(call_count_("stream_create"), 4u);
    EXPECT_EQ(success_count_("stream_create"), 2u);
    EXPECT_EQ(call_count_("memory_info"), 2u);
    EXPECT_EQ(call_count_("no_such_call"), 0u);
}

TEST_F(Fault, IsArmedWhileTheDeviceIsOpen) {
    ASSERT_EQ(open(nullptr), SH_OK);
    EXPECT_EQ(arm(nullptr, 2, 0), SH_OK);  // from the second on, for good
    EXPECT_EQ(pages(), SH_OK);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(pages(), SH_ERROR_BACKEND);
    disarm_();
    EXPECT_EQ(pages(), SH_OK);
    EXPECT_EQ(arm("memory_info", 1, 1, SH_ERROR_DEVICE_LOST), SH_OK);
    EXPECT_EQ(pages(), SH_ERROR_DEVICE_LOST);
    EXPECT_EQ(arm("no_such_call", 1), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(arm(nullptr, 1, 1, SH_OK + 1), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(pages(), SH_OK);
}

TEST_F(Fault, CountsOutliveTheDevice) {
    ASSERT_EQ(open("wrap=sim"), SH_OK);
    for (int i = 0; i < 9; ++i) EXPECT_EQ(pages(), SH_OK);
    backend_->device_close(device_);
    device_ = nullptr;
    EXPECT_EQ(counters().calls, 10u);
    EXPECT_EQ(counters().open, 0u);
    ASSERT_EQ(open("wrap=sim"), SH_OK);
    EXPECT_EQ(counters().calls, 1u) << "a device counts for itself";
}

TEST_F(Fault, WrapsWhatItIsTold) {
    ASSERT_EQ(open("wrap=sim:0;capacity=64MiB;latency=5us"), SH_OK) << backend_->last_error();
    EXPECT_EQ(info_.total_bytes, 64u << 20);
    EXPECT_EQ(info_.copy_latency_ns, 5000u);
    EXPECT_NE(info_.flags & SH_BACKEND_VIRTUAL_TIME, 0u);
    EXPECT_EQ(backend_->clock(device_), 0u);
}

TEST_F(Fault, PassesOnTheTextOfTheWrappedBackend) {
    ASSERT_EQ(open(nullptr), SH_OK);
    EXPECT_EQ(backend_->stream_synchronize(device_, 99), SH_ERROR_INVALID_HANDLE);
    EXPECT_NE(std::strstr(backend_->last_error(), "0x63 is not a stream"), nullptr) << backend_->last_error();
    EXPECT_EQ(counters().failures, 0u) << "it was not made to fail";
}

TEST_F(Fault, RefusesBadOptionsByName) {
    const char* const bad[][2] = {
        {"wrap=fault", "wrap"},        {"wrap=nowhere", "nowhere"},     {"wrap=host:x", "host:x"},
        {"fail_at=soon", "fail_at"},   {"fail_call=close", "close"},    {"fail_status=5", "fail_status"},
        {"delay_us=long", "delay_us"}, {"fail_count=-1", "fail_count"}, {"no_such=1", "no_such"}};
    for (const auto& [options, word] : bad) {
        EXPECT_LT(open(options), 0) << options;
        EXPECT_NE(std::strstr(backend_->last_error(), word), nullptr) << options << ": " << backend_->last_error();
        EXPECT_EQ(device_, nullptr);
    }
}

TEST_F(Fault, EveryCallCanFailAndIsCounted) {
    ASSERT_EQ(open("wrap=sim"), SH_OK);
    const sh_backend& b = *backend_;
    sh_backend_page page = 0;
    uint64_t word = 0, other = 0;
    uint32_t flag = 0;
    int64_t ns = 0;
    sh_backend_device* const d = device_;
    ASSERT_EQ(arm(nullptr, 1, 0, SH_ERROR_DEVICE_LOST), SH_OK);
    const sh_status all[] = {
        b.memory_info(d, &word, &other),
        b.pages_create(d, 1, 1, &page),
        b.pages_destroy(d, 1, 1, &page),
        b.range_reserve(d, 1, 1, &word),
        b.range_free(d, 1, 1),
        b.pages_map(d, 1, 1, 1, &page),
        b.pages_unmap(d, 1, 1, 1),
        b.host_register(d, &word, 8),
        b.host_unregister(d, &word),
        b.host_is_pinned(d, &word, 8, &flag),
        b.stream_create(d, &word),
        b.stream_destroy(d, 1),
        b.stream_synchronize(d, 1),
        b.stream_wait_event(d, 1, 1),
        b.stream_launch(d, 1, nullptr, nullptr, 0),
        b.event_create(d, 1, &word),
        b.event_destroy(d, 1),
        b.event_record(d, 1, 1),
        b.event_query(d, 1, &flag),
        b.event_synchronize(d, 1),
        b.event_elapsed(d, 1, 1, &ns),
        b.copy_to_device(d, 1, 1, &word, 8),
        b.copy_to_host(d, 1, &word, 1, 8),
        b.copy_on_device(d, 1, 1, 1, 1),
        b.fill(d, 1, 1, 1, 1),
        b.thread_begin(d),
    };
    for (const sh_status status : all) EXPECT_EQ(status, SH_ERROR_DEVICE_LOST);
    EXPECT_EQ(counters().failures, std::size(all));
    EXPECT_EQ(counters().calls, std::size(all) + 1);
}

TEST(LoaderThreads, FindTheSameTable) {
    std::vector<const sh_backend*> found(8);
    std::vector<std::thread> threads;
    for (const sh_backend*& table : found) {
        threads.emplace_back([&table] {
            for (const char* name : {"host", "fault"}) {
                const stagehand::Status status = stagehand::plugins::find_backend(name, nullptr, &table, nullptr);
                EXPECT_TRUE(status.ok()) << status.text();
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (const sh_backend* table : found) EXPECT_EQ(table, found[0]);
    EXPECT_STREQ(found[0]->name, "fault");
}

}  // namespace
