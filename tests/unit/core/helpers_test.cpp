// Helpers: other devices whose links bring a part of a runtime's weights.
#include <algorithm>
#include <atomic>
#include <memory>

#include "helpers_fixture.h"
#include "unpacking_fixture.h"

namespace stagehand::test {
namespace {

// The part of the bytes that helpers brought.
double helped_part(const Model& model) {
    const sh_runtime_stats stats = model.stats();
    return static_cast<double>(stats.helped_bytes) / static_cast<double>(stats.bytes_to_device);
}

TEST_F(HelpersTest, helpers_bring_their_share_and_every_byte_is_right) {
    TestDevice first(helper("host:1")), second(helper("host:2", 1));
    SoloModel model(helped_by("host:1,host:2"), blocks(), forward(10));
    const sh_stream stream = model.stream();
    run_steps(model, 4, stream);
    model.synchronize();
    EXPECT_EQ(model.compared(), 4 * model.size());
    EXPECT_NEAR(helped_part(model), 0.6, 0.1) << "links of 2, 2 and 1 GB/s";
    EXPECT_EQ(model.stats().host_waits, 0u);
    EXPECT_GT(first.memory().used_bytes, 0u) << "the buffer is a part of the helper's budget";
    model.destroy();
    EXPECT_EQ(first.memory().used_bytes, 0u);
    EXPECT_EQ(second.memory().used_bytes, 0u);
}

TEST_F(HelpersTest, plans_count_with_the_helpers) {
    TestDevice alone(helped_by(""));
    uint64_t slower = 0;
    {
        Model model(alone, blocks());
        SUCCEEDS(model.schedule(forward(model.size())));
        slower = model.plan().step_ns;
    }
    TestDevice fourth(helper("host:4"));
    TestDevice third({.name = "host:3",
                      .options = options(2),
                      .budget_bytes = 20 * kMiB,
                      .page_bytes = 64 << 10,
                      .link_bytes_per_second = 2'000'000'000,
                      .helpers = "host:4"});
    Model model(third, blocks());
    SUCCEEDS(model.schedule(forward(model.size())));
    EXPECT_NEAR(static_cast<double>(model.plan().step_ns), 0.5 * static_cast<double>(slower),
                0.1 * static_cast<double>(slower));
}

TEST_F(HelpersTest, auto_takes_the_open_devices_that_consent) {
    TestDevice consenting(helper("host:1"));
    DeviceSettings settings = helper("host:2");
    settings.helps = false;
    TestDevice other(settings);
    SoloModel model(helped_by("auto"), blocks(), forward(10));
    run_steps(model, 2, model.stream());
    EXPECT_NEAR(helped_part(model), 0.5, 0.1);
    EXPECT_GT(consenting.memory().used_bytes, 0u);
    EXPECT_EQ(other.memory().used_bytes, 0u);
}

TEST_F(HelpersTest, a_helper_that_streams_for_itself_is_left_alone) {
    TestDevice neighbour(helper("host:1"));
    DeviceSettings settings = helped_by("host:1");
    Model own(neighbour, equal_blocks(10, kBlock), {.max_bytes = 16 * kMiB});  // the buffer fits beside it
    SoloModel model(settings, blocks());
    SUCCEEDS(own.schedule(forward(own.size())));
    SUCCEEDS(model.schedule(forward(model.size())));
    core::Helpers::set_quiet_ns(3'600'000'000'000);
    run_steps(own, 1, neighbour.stream());
    run_steps(model, 1, model.stream());
    EXPECT_EQ(model.stats().helped_bytes, 0u);
    core::Helpers::set_quiet_ns(0);
    neighbour.synchronize();
    SUCCEEDS(sh_runtime_synchronize(own.runtime()));
    run_steps(model, 1, model.stream());
    EXPECT_GT(model.stats().helped_bytes, 0u);
    core::Helpers::set_quiet_ns(100'000'000);
}

TEST_F(HelpersTest, a_helper_without_memory_to_spare_is_left_out) {
    DeviceSettings settings = helper("host:1");
    settings.budget_bytes = 32 * kMiB;
    TestDevice neighbour(settings);
    SoloModel model(helped_by("host:1"), blocks(), forward(10));
    run_steps(model, 2, model.stream());
    model.synchronize();
    EXPECT_EQ(model.stats().helped_bytes, 0u);
    EXPECT_EQ(neighbour.memory().used_bytes, 0u);
}

TEST_F(HelpersTest, pieces_that_workers_read_come_over_all_links) {
    TestDevice neighbour(helper("host:1"));
    DeviceSettings settings = helped_by("host:1");
    settings.options += ";staging_piece=4MiB";
    settings.staging_bytes = 64 * kMiB;
    TestDevice device(settings);
    for (const Origin origin : {Origin::pageable, Origin::mapped, Origin::file, Origin::fill}) {
        Model model(device, equal_blocks(10, kBlock, origin));
        SUCCEEDS(model.schedule(forward(model.size())));
        run_steps(model, 2, device.stream());
        device.synchronize();
        EXPECT_NEAR(helped_part(model), 0.5, 0.15) << name_of(origin);
    }
}

TEST_F(HelpersTest, on_load_sees_what_the_helper_brought) {
    struct Seen {
        std::atomic<int> loads{0}, wrong{0};
        static int32_t look(const sh_loaded_range* range, void* user_data) {
            auto* const seen = static_cast<Seen*>(user_data);
            const auto* const bytes = static_cast<const uint8_t*>(range->address);
            struct Look {
                Seen* seen;
                std::vector<uint8_t> wanted;
                const uint8_t* found;
            };
            auto* const look = new Look{seen, contents_of(0, 0, range->block_bytes), bytes};
            look->wanted.erase(look->wanted.begin(), look->wanted.begin() + static_cast<ptrdiff_t>(range->offset));
            look->wanted.resize(range->bytes);
            const auto run = [](void* data) {
                const std::unique_ptr<Look> it(static_cast<Look*>(data));
                it->seen->loads++;
                it->seen->wrong += !std::equal(it->wanted.begin(), it->wanted.end(), it->found);
            };
            return sh_stream_launch(seen->device, range->stream, run, look, -1) == SH_OK ? 0 : 1;
        }
        sh_device* device = nullptr;
    } seen;
    TestDevice neighbour(helper("host:1"));
    TestDevice device(helped_by("host:1"));
    seen.device = device.get();
    std::vector<BlockSpec> specs = blocks();
    specs[0].on_load = Seen::look;
    specs[0].user_data = &seen;
    Model model(device, specs);
    model.set_truth(0, contents_of(0, 0, specs[0].bytes));
    model.source(0).write(contents_of(0, 0, specs[0].bytes));
    SUCCEEDS(model.schedule(forward(model.size())));
    run_steps(model, 3, device.stream());
    device.synchronize();
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    EXPECT_GT(seen.loads.load(), 1);
    EXPECT_EQ(seen.wrong.load(), 0);
    EXPECT_GT(helped_part(model), 0.3);
}

TEST_F(HelpersTest, a_pause_gives_the_buffers_back) {
    TestDevice neighbour(helper("host:1"));
    SoloModel model(helped_by("host:1"), blocks(), forward(10));
    run_steps(model, 1, model.stream());
    model.synchronize();
    sh_pause_options all = SH_PAUSE_OPTIONS_INIT;
    sh_resume_options back = SH_RESUME_OPTIONS_INIT;
    if (devices_without_pages()) GTEST_SKIP() << "it needs fixed addresses";
    SUCCEEDS(sh_pause(model.device(), &all, nullptr));
    EXPECT_EQ(neighbour.memory().used_bytes, 0u);
    SUCCEEDS(sh_resume(model.device(), &back, nullptr));
    const uint64_t before = model.stats().helped_bytes;
    run_steps(model, 2, model.stream());
    model.synchronize();
    EXPECT_GT(model.stats().helped_bytes, before);
}

TEST_F(HelpersTest, small_copies_take_the_own_link) {
    TestDevice neighbour(helper("host:1"));
    SoloModel model(helped_by("host:1"), equal_blocks(240, 100 << 10), forward(240));
    run_steps(model, 2, model.stream());
    model.synchronize();
    EXPECT_EQ(model.stats().helped_bytes, 0u);
}

TEST_F(HelpersTest, another_opening_does_not_change_the_helpers) {
    TestDevice device(helped_by("host:1"));
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    sh_helper_options helpers = SH_HELPER_OPTIONS_INIT;
    options.helpers = &helpers;
    sh_device* again = nullptr;
    helpers.devices = "host:2";
    EXPECT_REFUSED(sh_device_open("host:0", &options, &again), SH_ERROR_INVALID_ARGUMENT, "helpers host:1");
    helpers.devices = nullptr;
    helpers.flags = SH_HELPS_OTHERS;
    EXPECT_EQ(sh_device_open("host:0", &options, &again), SH_ERROR_INVALID_ARGUMENT);
    helpers.flags = 0;
    helpers.devices = "host:1";
    SUCCEEDS(sh_device_open("host:0", &options, &again));
    sh_device_close(again);
}

// Each is a helper of the other.
TEST_F(HelpersTest, two_devices_help_each_other) {
    DeviceSettings one = helped_by("host:1"), other = helped_by("host:0");
    other.name = "host:1";
    one.budget_bytes = other.budget_bytes = 128 * kMiB;  // enough for a buffer
    const RuntimeSettings some{.max_bytes = 20 * kMiB};
    TestDevice first(one), second(other);
    Model a(first, blocks(), some), b(second, blocks(), some);
    SUCCEEDS(a.schedule(forward(a.size())));
    SUCCEEDS(b.schedule(forward(b.size())));
    run_steps(a, 2, first.stream());
    first.synchronize();
    EXPECT_GT(a.stats().helped_bytes, 0u);
    run_steps(b, 2, second.stream());
}

TEST_F(HelpersTest, wrong_helpers_are_refused_by_name) {
    const std::pair<const char*, const char*> wrong[] = {{"sim:1", "sim:1 is of another backend than host:0"},
                                                         {"host:0", "a device cannot help itself"},
                                                         {"host", "a device cannot help itself"},
                                                         {"host:99", "there is no device host:99"},
                                                         {"host:1,host:1", "host:1 is named twice"},
                                                         {"host:1,", "device name \"\" is not of the form"}};
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    sh_helper_options helpers = SH_HELPER_OPTIONS_INIT;
    options.helpers = &helpers;
    sh_device* device = nullptr;
    for (const auto& [names, text] : wrong) {
        helpers.devices = names;
        EXPECT_EQ(sh_device_open("host:0", &options, &device), SH_ERROR_INVALID_ARGUMENT) << names;
        EXPECT_NE(why().find(text), std::string::npos) << why();
    }
    helpers.devices = "auto";
    EXPECT_EQ(sh_device_open("sim", &options, &device), SH_ERROR_UNSUPPORTED);
    helpers.devices = nullptr;
    helpers.flags = ~uint32_t(SH_HELPS_OTHERS);
    EXPECT_EQ(sh_device_open("host:0", &options, &device), SH_ERROR_INVALID_ARGUMENT);
}

// Packed weights, whose chunks come over both links.
class HelpedUnpackingTest : public UnpackingTest {
protected:
    static DeviceSettings of(const std::string& name, const std::string& helpers, uint64_t budget) {
        DeviceSettings settings = kDevice;
        settings.name = name;
        settings.helpers = helpers;
        settings.budget_bytes = budget;
        return settings;
    }
    HelpedUnpackingTest()
        : UnpackingTest(
              of(on_host_backend() ? "host:0" : device_under_test(), on_host_backend() ? "host:1" : "", kBudget)) {}
    void SetUp() override {
        if (!on_host_backend()) GTEST_SKIP() << "it needs several devices";
        least_ = transfer::Carrier::least_bytes();
        transfer::Carrier::set_least_bytes(64 << 10);
        helper_ = std::make_unique<TestDevice>(of("host:1", "", 256 * kMiB));
        UnpackingTest::SetUp();
    }
    void TearDown() override {
        if (least_) transfer::Carrier::set_least_bytes(least_);
        UnpackingTest::TearDown();
    }

    uint64_t least_ = 0;
    std::unique_ptr<TestDevice> helper_;
};

TEST_F(HelpedUnpackingTest, brings_packed_weights_over_both_links) {
    for (const uint32_t kind : {SH_SOURCE_POINTER, SH_SOURCE_FILE}) {
        kind_ = kind;
        add_model(runtime_);
        set_schedule();
        for (int k = 0; k < 3; k++) step(runtime_);
        EXPECT_GT(beside(runtime_), 0u) << "the device does not unpack";
        const sh_runtime_stats now = stats(runtime_);
        EXPECT_NEAR(static_cast<double>(now.helped_bytes) / static_cast<double>(now.bytes_to_device), 0.5, 0.2);
        sh_runtime_destroy(runtime_);
        blocks_.clear();
        truth_.clear();
        runtime_ = new_runtime();
    }
}

}  // namespace
}  // namespace stagehand::test
