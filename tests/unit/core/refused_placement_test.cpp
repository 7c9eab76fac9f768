// A plan whose memory is refused when the plan is put into force: the ceiling of the pool came down after the arbiter
// had granted the memory. The runtime keeps what it had, which is its pages, the cache outside the order, and their
// contents.
#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "core/device/device.h"
#include "core/runtime/runtime.h"
#include "engine.h"
#include "plugins/backends.h"

namespace stagehand::test {
namespace {

constexpr size_t kOrdered = 4, kCached = 4, kBlocks = 10;
const uint64_t kBlockBytes = 4 * kPage;

const sh_backend* host_table;
core::PagePool* ceiling_of;

// A change of the plan waits for the copies of the runtime after the arbiter has granted memory, and before any memory
// changes. At this point the free part of the budget goes away.
sh_status synchronize(sh_backend_device* device, sh_stream stream) {
    if (ceiling_of) {
        const uint64_t used = ceiling_of->used_bytes() / kPage;
        ceiling_of->set_limit([used] { return used; });
    }
    return host_table->stream_synchronize(device, stream);
}

class RefusedPlacement : public testing::Test {
protected:
    void SetUp() override {
        if (!on_host_backend()) GTEST_SKIP() << "the test needs a backend whose functions it can replace";
        std::string path;
        ASSERT_TRUE(plugins::find_backend("host", nullptr, &host_table, &path).ok());
        table_ = *host_table;
        table_.stream_synchronize = synchronize;
        sh_backend_device* opened = nullptr;
        sh_backend_device_info info = {};
        info.struct_size = sizeof info;
        ASSERT_EQ(host_table->device_open(0, devices_without_pages() ? "map_pages=0" : "", &opened, &info), SH_OK);
        core::DeviceOptions options;
        options.device.link_bytes_per_second = 4'000'000'000;
        device_ = std::make_shared<core::Device>("host", 0, std::make_unique<BackendDevice>(table_, opened, info),
                                                 options, kPage);
        ASSERT_TRUE(device_->arbiter().set_total(64).ok());
        device_->limit_pool();
        const sh_runtime_options runtime = SH_RUNTIME_OPTIONS_INIT;
        ASSERT_TRUE(core::Runtime::create(device_, runtime, mutex_, &runtime_).ok());
        lock_ = core::Lock(mutex_);
        for (size_t i = 0; i < kBlocks; i++) add_block();
    }
    void TearDown() override {
        ceiling_of = nullptr;
        if (!runtime_) return;
        EXPECT_TRUE(runtime_->close(lock_).ok());
        lock_.unlock();
        runtime_.reset();
    }

    void add_block() {
        sh_segment segment = memory_segment(bytes_.data(), kBlockBytes);
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        desc.bytes = kBlockBytes;
        desc.segments = &segment;
        desc.segment_count = 1;
        const Status status = runtime_->blocks().add({&desc, 1}, &ids_.emplace_back(), lock_);
        ASSERT_TRUE(status.ok()) << status.text();
    }
    void schedule(size_t count) {
        std::vector<sh_use> uses(count, SH_USE_INIT);
        for (size_t i = 0; i < count; i++) uses[i].block = ids_[i];
        ASSERT_TRUE(runtime_->steps().set_schedule(uses).ok());
    }
    Status acquire(size_t i, sh_view* out) { return runtime_->acquire(ids_[i], SH_STREAM_HOST, 0, out, lock_); }
    void release(size_t i) {
        const Status status = runtime_->release(ids_[i], SH_STREAM_HOST, lock_);
        EXPECT_TRUE(status.ok()) << status.text();
    }
    void step(size_t count) {
        Status status = runtime_->step_begin(nullptr, lock_);
        ASSERT_TRUE(status.ok()) << status.text();
        for (size_t i = 0; i < count; i++) {
            auto view = sh_sized<sh_view>();
            status = acquire(i, &view);
            ASSERT_TRUE(status.ok()) << status.text();
            release(i);
        }
        status = runtime_->step_end(lock_);
        ASSERT_TRUE(status.ok()) << status.text();
    }
    sh_runtime_stats stats() const {
        auto stats = sh_sized<sh_runtime_stats>();
        runtime_->figures().stats(&stats);
        return stats;
    }
    std::vector<uint8_t> bytes_ = std::vector<uint8_t>(kBlockBytes, 7);
    sh_backend table_ = {};
    std::shared_ptr<core::Device> device_;
    std::mutex mutex_;
    core::Lock lock_;
    std::shared_ptr<core::Runtime> runtime_;
    std::vector<sh_block> ids_;
};

TEST_F(RefusedPlacement, leaves_pages_contents_and_the_cache_as_they_were) {
    schedule(kOrdered);
    step(kOrdered);
    auto view = sh_sized<sh_view>();
    ASSERT_TRUE(acquire(kCached, &view).ok());  // outside the order: memory of the cache
    release(kCached);
    const sh_runtime_stats before = stats();
    const uint64_t pool_before = device_->pool().used_bytes();
    ASSERT_EQ(before.held_bytes, (kOrdered + 1) * kBlockBytes);

    // All blocks join the order, and the plan wants memory for all of them.
    for (size_t i = kBlocks; i < kBlocks + 2; i++) add_block();
    schedule(ids_.size());
    ceiling_of = &device_->pool();
    const Status refused = runtime_->step_begin(nullptr, lock_);
    ceiling_of = nullptr;
    EXPECT_EQ(refused.code(), SH_ERROR_BUDGET) << refused.text();
    EXPECT_NE(std::string(refused.text()).find("no room for"), std::string::npos) << refused.text();

    EXPECT_EQ(stats().held_bytes, before.held_bytes);
    EXPECT_EQ(stats().plans, before.plans);
    EXPECT_EQ(stats().unordered_bytes, before.unordered_bytes);
    EXPECT_EQ(device_->pool().used_bytes(), pool_before);
    device_->limit_pool();  // the memory can be had again
    ASSERT_TRUE(acquire(kCached, &view).ok());
    std::vector<size_t> held = {kCached};
    EXPECT_TRUE(view.flags & SH_VIEW_HIT);
    EXPECT_EQ(stats().loads, before.loads);
    // While a view is held, no plan is tried again. The cache has the room that it had, and the first block takes a
    // part of it.
    const size_t room = before.unordered_bytes / kBlockBytes, full = kCached + room;
    ASSERT_LT(full, ids_.size());
    for (size_t i = kCached + 1; i <= full; i++) {
        auto other = sh_sized<sh_view>();
        const Status status = acquire(i, &other);
        EXPECT_EQ(status.code(), i < full ? SH_OK : SH_ERROR_HELD) << status.text();
        if (status.ok()) held.push_back(i);
    }
    EXPECT_EQ(stats().evictions, before.evictions);
    EXPECT_EQ(stats().held_bytes, (kOrdered + room) * kBlockBytes);
    for (const size_t i : held) release(i);

    step(ids_.size());
    EXPECT_EQ(stats().held_bytes, ids_.size() * kBlockBytes);
}

// Others could not have the memory if the arbiter went on counting what it had granted.
TEST_F(RefusedPlacement, leaves_nothing_of_the_grant_without_a_plan_before) {
    schedule(kOrdered);
    ceiling_of = &device_->pool();
    const Status refused = runtime_->step_begin(nullptr, lock_);
    ceiling_of = nullptr;
    EXPECT_FALSE(refused.ok());
    EXPECT_EQ(stats().held_bytes, 0u);
    const uint64_t all = device_->arbiter().total_pages();
    EXPECT_EQ(device_->arbiter().lend(1, all), all);
    device_->arbiter().take_back(all, 0);
    device_->limit_pool();
    step(kOrdered);
}

}  // namespace
}  // namespace stagehand::test
