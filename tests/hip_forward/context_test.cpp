// A GPU whose context cannot be entered, and a thread that works on another GPU: each call fails, and no call reaches
// the other GPU.
#include <dlfcn.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "plugins/backends.h"

namespace stagehand {
namespace {

constexpr uint64_t kPage = 64 << 10;  // the stub's

struct Call {
    const char* name;
    std::function<sh_status()> make;
};

template <class Function>
Function* stub_function(const char* name) {
    void* const file = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    auto* const function = file ? reinterpret_cast<Function*>(dlsym(file, name)) : nullptr;
    if (!function) throw std::runtime_error(std::string(name) + ": the driver that is loaded is not the stub");
    return function;
}

class Contexts : public testing::Test {
protected:
    void SetUp() override {
        const Status found = plugins::find_backend("cuda", nullptr, &backend_, nullptr);
        ASSERT_TRUE(found.ok()) << found.text();
        uint32_t count = 0;
        ASSERT_EQ(backend_->probe(&count), SH_OK) << backend_->last_error();
        sh_backend_device_info info = {};
        info.struct_size = sizeof info;
        ASSERT_EQ(backend_->device_open(0, nullptr, &device_, &info), SH_OK) << backend_->last_error();
        ASSERT_EQ(info.granularity_bytes, kPage);
        ASSERT_EQ(info.host_node, 1u) << "node 0";
        ASSERT_EQ(backend_->stream_create(device_, &stream_), SH_OK);
        ASSERT_EQ(backend_->event_create(device_, 1, &event_), SH_OK);
        ASSERT_EQ(backend_->event_record(device_, event_, stream_), SH_OK);
        ASSERT_EQ(backend_->pages_create(device_, kPage, 1, &page_), SH_OK);
        ASSERT_EQ(backend_->range_reserve(device_, kPage, kPage, &address_), SH_OK);
        ASSERT_EQ(backend_->pages_map(device_, address_, kPage, 1, &page_), SH_OK);
    }
    void TearDown() override {
        if (!device_) return;
        EXPECT_EQ(backend_->stream_synchronize(device_, stream_), SH_OK);
        EXPECT_EQ(backend_->pages_unmap(device_, address_, kPage, 1), SH_OK);
        EXPECT_EQ(backend_->range_free(device_, address_, kPage), SH_OK);
        EXPECT_EQ(backend_->pages_destroy(device_, kPage, 1, &page_), SH_OK);
        EXPECT_EQ(backend_->event_destroy(device_, event_), SH_OK);
        EXPECT_EQ(backend_->stream_destroy(device_, stream_), SH_OK);
        backend_->device_close(device_);
    }
    std::vector<Call> calls() {
        const sh_backend& b = *backend_;
        return {
            {"memory_info", [&] { return b.memory_info(device_, &out_, &out_); }},
            {"pages_create", [&] { return b.pages_create(device_, kPage, 1, &out_); }},
            {"pages_unmap", [&] { return b.pages_unmap(device_, address_, kPage, 1); }},
            {"pages_map", [&] { return b.pages_map(device_, address_, kPage, 1, &page_); }},
            {"pages_destroy", [&] { return b.pages_destroy(device_, kPage, 1, &page_); }},
            {"range_reserve", [&] { return b.range_reserve(device_, kPage, kPage, &out_); }},
            {"range_free", [&] { return b.range_free(device_, address_, kPage); }},
            {"host_register", [&] { return b.host_register(device_, memory_, sizeof memory_); }},
            {"host_unregister", [&] { return b.host_unregister(device_, memory_); }},
            {"host_is_pinned", [&] { return b.host_is_pinned(device_, memory_, sizeof memory_, &flag_); }},
            {"stream_create", [&] { return b.stream_create(device_, &out_); }},
            {"stream_synchronize", [&] { return b.stream_synchronize(device_, stream_); }},
            {"device_synchronize", [&] { return b.device_synchronize(device_); }},
            {"stream_wait_event", [&] { return b.stream_wait_event(device_, stream_, event_); }},
            {"stream_is_capturing", [&] { return b.stream_is_capturing(device_, stream_, &flag_); }},
            {"stream_launch",
             [&] {
                 return b.stream_launch(
                     device_, stream_, [](void*) {}, nullptr, 0);
             }},
            {"event_create", [&] { return b.event_create(device_, 0, &out_); }},
            {"event_record", [&] { return b.event_record(device_, event_, stream_); }},
            {"event_query", [&] { return b.event_query(device_, event_, &flag_); }},
            {"event_synchronize", [&] { return b.event_synchronize(device_, event_); }},
            {"event_elapsed", [&] { return b.event_elapsed(device_, event_, event_, &time_); }},
            {"copy_to_device", [&] { return b.copy_to_device(device_, stream_, address_, memory_, sizeof memory_); }},
            {"copy_to_host", [&] { return b.copy_to_host(device_, stream_, memory_, address_, sizeof memory_); }},
            {"copy_on_device",
             [&] { return b.copy_on_device(device_, stream_, address_, address_ + kPage / 2, kPage / 2); }},
            {"fill", [&] { return b.fill(device_, stream_, address_, 0, kPage); }},
            {"memory_is_reachable", [&] { return b.memory_is_reachable(device_, address_, kPage, &flag_); }},
            {"event_destroy", [&] { return b.event_destroy(device_, event_); }},
            {"stream_destroy", [&] { return b.stream_destroy(device_, stream_); }},
        };
    }

    const sh_backend* backend_ = nullptr;
    sh_backend_device* device_ = nullptr;
    sh_stream stream_ = 0;
    sh_backend_event event_ = 0;
    sh_backend_page page_ = 0;
    uint64_t address_ = 0, out_ = 77;
    uint32_t flag_ = 77;
    int64_t time_ = 77;
    alignas(4096) char memory_[4096] = {};
};

TEST_F(Contexts, that_cannot_be_entered_fail_each_call) {
    const auto work_elsewhere = stub_function<void(int)>("sh_stub_work_elsewhere"),
               refuse = stub_function<void(int)>("sh_stub_refuse_contexts");
    work_elsewhere(1);
    refuse(1);
    for (const Call& call : calls()) {
        EXPECT_EQ(call.make(), SH_ERROR_BACKEND) << call.name;
        EXPECT_NE(std::string(backend_->last_error()).find("context"), std::string::npos)
            << call.name << ": " << backend_->last_error();
    }
    EXPECT_EQ(out_, 77u);
    EXPECT_EQ(flag_, 77u);
    EXPECT_EQ(time_, 77);
    sh_backend_device* other = nullptr;
    sh_backend_device_info info = {};
    EXPECT_EQ(backend_->device_open(0, nullptr, &other, &info), SH_ERROR_BACKEND);
    EXPECT_EQ(other, nullptr);
    refuse(0);
    EXPECT_EQ(backend_->memory_info(device_, &out_, &out_), SH_OK) << backend_->last_error();
    work_elsewhere(0);
    EXPECT_EQ(stub_function<int()>("sh_stub_calls_elsewhere")(), 0);
}

}  // namespace
}  // namespace stagehand
