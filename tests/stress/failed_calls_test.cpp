// One call into the driver fails in the middle of something. What had been taken for it is given back, and what is
// under way ends before the call returns.
#include <cstring>
#include <vector>

#include "../unit/codec/weights.h"
#include "engine.h"
#include "fault/fault.h"
#include "plugin.h"
#include "several_models.h"

namespace stagehand::test {
namespace {

class FailedCalls : public testing::Test {
protected:
    void SetUp() override {
        if (!std::getenv("STAGEHAND_BACKEND_PATH"))
            GTEST_SKIP() << "STAGEHAND_BACKEND_PATH does not lead to the fault backend";
        if (!on_host_backend()) GTEST_SKIP() << "the test reads and writes device memory";
    }

    static DeviceSettings settings(const std::string& options = "") {
        return {.name = "fault", .options = "wrap=host;poison=1;" + options, .budget_bytes = 8 << 20};
    }
    template <class Function>
    static Function* control(const char* name) {
        return plugin_function<Function>("stagehand-fault.so", name);
    }
    // The n-th call of the member, or of any, fails, and so do those after it: `count` in all, or for ever (0).
    static void fail(const char* call, uint64_t n, uint64_t count = 1) {
        sh_fault_plan plan = {sizeof plan, SH_ERROR_BACKEND, call, n, count};
        EXPECT_SUCCEEDS(control<decltype(sh_fault_arm)>("sh_fault_arm")(&plan));
    }
    static void heal() { control<decltype(sh_fault_disarm)>("sh_fault_disarm")(); }
    static sh_fault_counters_info counters() {
        sh_fault_counters_info counters = {sizeof counters, 0, 0, 0};
        EXPECT_SUCCEEDS(control<decltype(sh_fault_counters)>("sh_fault_counters")(&counters));
        return counters;
    }
    // Registrations of host memory that last.
    static uint64_t pins() {
        auto* const successes = control<decltype(sh_fault_success_count)>("sh_fault_success_count");
        return successes("host_register") - successes("host_unregister");
    }
};

TEST_F(FailedCalls, a_spill_gives_its_host_memory_back) {
    constexpr uint64_t kTensor = 64 << 10;
    TestDevice device(settings());
    sh_spill_class size_class = SH_SPILL_CLASS_INIT;
    size_class.bytes = kTensor;
    size_class.count = 1;
    sh_spiller_options options = SH_SPILLER_OPTIONS_INIT;
    options.classes = &size_class;
    options.class_count = 1;
    sh_spiller* spiller = nullptr;
    SUCCEEDS(sh_spiller_create(device.get(), &options, &spiller));
    const std::vector<uint8_t> truth = contents_of(1, 1, kTensor);
    std::vector<uint8_t> back(kTensor);
    const int64_t size = kTensor;
    sh_saved_tensor tensor = SH_SAVED_TENSOR_INIT;
    tensor.element_bytes = 1;
    tensor.dimensions = 1;
    tensor.sizes = &size;
    tensor.address = reinterpret_cast<uint64_t>(truth.data());
    const sh_stream stream = device.stream();
    sh_ticket stays = 0, leaves = 0, gone = 0;
    fail("copy_to_host", 1);
    EXPECT_EQ(sh_spill(spiller, &tensor, stream, SH_SPILL_NOW, &stays), SH_KEPT);
    EXPECT_EQ(sh_spill(spiller, &tensor, stream, SH_SPILL_NOW, &leaves), SH_OK) << why();
    sh_spiller_stats stats = SH_SPILLER_STATS_INIT;
    SUCCEEDS(sh_spiller_get_stats(spiller, &stats));
    EXPECT_EQ(stats.failed_spills, 1u);
    EXPECT_EQ(stats.pool_misses, 0u) << "the host memory of the tensor that stays is lost";
    EXPECT_EQ(stats.unpinned_bytes, 0u);
    uint64_t count = 0;
    SUCCEEDS(sh_spiller_collect(spiller, stream, SH_COLLECT_ALL, &gone, 1, &count));
    EXPECT_EQ(gone, leaves);
    SUCCEEDS(sh_restore(spiller, leaves, reinterpret_cast<uint64_t>(back.data()), stream));
    SUCCEEDS(sh_stream_synchronize(device.get(), stream));
    EXPECT_EQ(back, truth);
    for (const sh_ticket ticket : {stays, leaves}) SUCCEEDS(sh_ticket_release(spiller, ticket));
    uint64_t freed = 0;
    SUCCEEDS(sh_spiller_trim(spiller, &freed));
    EXPECT_EQ(freed, kTensor);
    sh_spiller_destroy(spiller);
}

// The memory of the runtime and of all tags goes back, so that others can use it, and the next resume brings it all.
TEST_F(FailedCalls, a_resume_leaves_everything_released) {
    if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    TestDevice device(settings());
    auto model = make(device, 6, "a");
    copied(*model, 2);
    const std::vector<uint8_t> truth = contents_of(7, 1, 3 << 20);
    uint64_t memory = 0;
    SUCCEEDS(sh_alloc(device.get(), truth.size(), nullptr, &memory));
    std::memcpy(reinterpret_cast<void*>(memory), truth.data(), truth.size());
    for (const char* const call : {"pages_create", "pages_map", "copy_to_device", "event_synchronize"}) {
        SCOPED_TRACE(call);
        SUCCEEDS(sh_pause(device.get(), nullptr, nullptr));
        EXPECT_EQ(device.memory().used_bytes, 0u);
        fail(call, 1);
        EXPECT_EQ(sh_resume(device.get(), nullptr, nullptr), SH_ERROR_BACKEND);
        sh_occupancy_info info = SH_OCCUPANCY_INFO_INIT;
        SUCCEEDS(sh_occupancy_get_info(device.get(), nullptr, &info));
        EXPECT_EQ(info.state, uint32_t(SH_OCCUPANCY_RELEASED));
        EXPECT_EQ(info.device_bytes, 0u);
        EXPECT_EQ(model->stats().held_bytes, 0u);
        EXPECT_EQ(device.memory().used_bytes, 0u);
        auto guest = make(device, 6, "guest");
        copied(*guest, 2);
        EXPECT_EQ(guest->wrong_uses(), 0u) << guest->first_wrong();
        guest->destroy();
        SUCCEEDS(sh_resume(device.get(), nullptr, nullptr));
        EXPECT_EQ(std::memcmp(reinterpret_cast<void*>(memory), truth.data(), truth.size()), 0);
        copied(*model);
        EXPECT_EQ(model->wrong_uses(), 0u) << model->first_wrong();
    }
}

// One part of the block's source is pinned and gets its bytes from the device, the other one by way of a buffer. The
// engine may free or use all of it when the call has failed.
TEST_F(FailedCalls, a_write_back_writes_no_source_after_its_failure) {
    constexpr uint64_t kHalf = 1 << 20;
    TestDevice device(settings("bandwidth=40MB/s"));
    Source pinned(device.get(), Origin::pageable, contents_of(1, 1, kHalf));
    Source pageable(device.get(), Origin::pageable, contents_of(2, 1, kHalf));
    sh_runtime* runtime = nullptr;
    SUCCEEDS(sh_runtime_create(device.get(), nullptr, &runtime));
    const auto register_block = [&](std::vector<sh_segment> segments, uint32_t flags, sh_block* out) {
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        desc.flags = flags;
        for (const sh_segment& segment : segments) desc.bytes += segment.bytes;
        desc.segments = segments.data();
        desc.segment_count = segments.size();
        SUCCEEDS(sh_register_blocks(runtime, &desc, 1, out));
    };
    sh_block block = 0, pins = 0;
    register_block({pinned.segment(), pageable.segment(kHalf)}, SH_BLOCK_MUTABLE, &block);
    register_block({pinned.segment()}, SH_BLOCK_PIN, &pins);
    sh_view view = SH_VIEW_INIT;
    SUCCEEDS(sh_acquire(runtime, block, SH_STREAM_HOST, 0, &view));
    std::memset(view.address, 0xaa, 2 * kHalf);
    SUCCEEDS(sh_mark_dirty(runtime, block));
    SUCCEEDS(sh_release(runtime, block, SH_STREAM_HOST));
    fail("copy_to_host", 2);
    EXPECT_EQ(sh_write_back(runtime, &block, 1), SH_ERROR_BACKEND);
    std::memset(pinned.memory(), 0xbb, kHalf);
    // This comes after all copies of the lane.
    SUCCEEDS(sh_acquire(runtime, block, SH_STREAM_HOST, 0, &view));
    std::vector<uint8_t> bytes(2 * kHalf);
    SUCCEEDS(sh_read_block(runtime, block, SH_STREAM_HOST, 0, bytes.data(), bytes.size()));
    EXPECT_EQ(bytes, std::vector<uint8_t>(2 * kHalf, 0xaa)) << "the change is lost";
    SUCCEEDS(sh_release(runtime, block, SH_STREAM_HOST));
    EXPECT_EQ(pinned.read(), std::vector<uint8_t>(kHalf, 0xbb));
    SUCCEEDS(sh_write_back(runtime, &block, 1));
    EXPECT_EQ(pinned.read(), std::vector<uint8_t>(kHalf, 0xaa));
    EXPECT_EQ(pageable.read(), std::vector<uint8_t>(kHalf, 0xaa));
    sh_runtime_destroy(runtime);
}

// Copies that the device cannot be asked about may go on when a pause has failed and their memory is freed. Their host
// memory comes back when they have ended, and stays if the device never says so.
TEST_F(FailedCalls, host_memory_stays_as_long_as_copies_may_use_it) {
    if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    enum { succeeds, fails, fails_for_ever };
    uint64_t part = 0;  // the call of a pause that gives the first part of the memory back
    for (const auto asking : {succeeds, fails, fails_for_ever}) {
        TestDevice device(settings("ordered=2"));
        const uint64_t pins_before = pins();
        uint64_t memory = 0;
        SUCCEEDS(sh_alloc(device.get(), 3 << 20, nullptr, &memory));
        const uint64_t before = counters().calls;
        if (asking != succeeds) fail(nullptr, part + 1, 0);
        ASSERT_EQ(sh_pause(device.get(), nullptr, nullptr), asking == succeeds ? SH_OK : SH_ERROR_BACKEND);
        auto* const name = control<decltype(sh_fault_call_name)>("sh_fault_call_name");
        for (part = 1; std::strcmp(name(before + part), "pages_destroy") != 0;) part++;
        SUCCEEDS(sh_free(device.get(), memory));
        EXPECT_EQ(pins(), asking == succeeds ? pins_before : pins_before + 1);
        heal();
        if (asking == fails_for_ever) {
            fail("stream_synchronize", 1, 0);
            continue;
        }
        SUCCEEDS(sh_occupancy_trim(device.get(), nullptr));
        EXPECT_EQ(pins(), pins_before);
    }
}

// Three calls of the first plan fail, from each of them on.
TEST_F(FailedCalls, a_measurement_of_unpacking_frees_nothing_that_its_copies_may_use) {
    const std::vector<uint8_t> weights = codec::test::weights(codec::FloatFormat::bf16, 100'000, 1);
    DeviceSettings device_settings = settings("capacity=64MiB;ordered=2");
    device_settings.budget_bytes = 17 << 20;
    device_settings.page_bytes = 64 << 10;
    device_settings.link_bytes_per_second = 1'000'000;  // unpacking is faster
    uint64_t failing = 1;
    for (bool met = true; met; failing++) {
        TestDevice device(device_settings);
        sh_runtime* runtime = nullptr;
        SUCCEEDS(sh_runtime_create(device.get(), nullptr, &runtime));
        sh_segment segment = SH_SEGMENT_INIT;
        segment.kind = SH_SOURCE_POINTER;
        segment.pointer = weights.data();
        segment.bytes = weights.size();
        segment.format = SH_FORMAT_BF16;
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        desc.segments = &segment;
        desc.segment_count = 1;
        desc.bytes = segment.bytes;
        desc.flags = SH_BLOCK_PACK;
        sh_use use = SH_USE_INIT;
        SUCCEEDS(sh_register_blocks(runtime, &desc, 1, &use.block));
        SUCCEEDS(sh_set_schedule(runtime, &use, 1));
        fail(nullptr, failing, 3);
        const sh_status status = sh_plan(runtime, nullptr, nullptr);
        met = counters().failures > 0;
        EXPECT_TRUE(status == SH_OK || (met && status == SH_ERROR_BACKEND)) << why();
        heal();
        if (!met) {
            EXPECT_GT(control<decltype(sh_fault_call_count)>("sh_fault_call_count")("unpack"), 5u);
        }
        sh_runtime_destroy(runtime);
    }
    EXPECT_GT(failing, 20u);
}

// The change cannot be written to its source. The block stays usable, and the next attempt writes the change.
TEST_F(FailedCalls, an_update_that_fails_has_not_begun) {
    TestDevice device(settings());
    auto model = make(device, 2, "a", SH_BLOCK_MUTABLE);
    sh_view view = SH_VIEW_INIT;
    SUCCEEDS(sh_acquire(model->runtime(), model->id(0), SH_STREAM_HOST, 0, &view));
    SUCCEEDS(model->overwrite(0, view, 2));
    SUCCEEDS(sh_release(model->runtime(), model->id(0), SH_STREAM_HOST));
    fail("copy_to_host", 1);
    EXPECT_EQ(sh_source_update_begin(model->runtime(), model->ids().data(), 2), SH_ERROR_BACKEND);
    for (size_t i = 0; i < 2; i++) SUCCEEDS(model->use(i));
    SUCCEEDS(sh_source_update_begin(model->runtime(), model->ids().data(), 2));
    EXPECT_EQ(model->source(0).read(), *model->truth(0));
    model->change(0, 3);
    SUCCEEDS(sh_source_update_end(model->runtime(), model->ids().data(), 2));
    for (size_t i = 0; i < 2; i++) SUCCEEDS(model->use(i));
    EXPECT_EQ(model->wrong_uses(), 0u) << model->first_wrong();
}

}  // namespace
}  // namespace stagehand::test
