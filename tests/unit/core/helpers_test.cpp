// Helpers: other devices whose links bring a part of a runtime's weights.
#include "engine.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class HelpersTest : public testing::Test {
protected:
    void SetUp() override {
        if (!on_host_backend()) GTEST_SKIP() << "it needs several devices";
    }

    static std::string options(const std::string& speed) {
        return "capacity=512MiB;poison=1;bandwidth=" + speed + ";latency=1us";
    }
    static DeviceSettings helped(const std::string& helpers, const std::string& speed = "2GB/s") {
        return {.name = "host:0",
                .options = options(speed),
                .budget_bytes = 160 * kMiB,
                .page_bytes = 64 << 10,
                .link_bytes_per_second = 0,
                .helpers = helpers};
    }
    static DeviceSettings helper(const std::string& name, const std::string& speed = "2GB/s") {
        return {.name = name,
                .options = options(speed),
                .budget_bytes = 256 * kMiB,
                .page_bytes = 64 << 10,
                .link_bytes_per_second = 0,
                .device_flags = SH_DEVICE_HELPS};
    }
    static std::vector<BlockSpec> blocks() { return equal_blocks(10, 24 * kMiB - 100); }

    static void run_steps(Model& model, int steps, sh_stream stream) {
        for (int k = 0; k < steps; k++) SUCCEEDS(model.step(forward(model.size()), stream));
    }
};

// The part of the bytes that helpers brought.
double helped_part(const Model& model) {
    const sh_runtime_stats stats = model.stats();
    return static_cast<double>(stats.helped_bytes) / static_cast<double>(stats.bytes_to_device);
}

TEST_F(HelpersTest, helpers_bring_their_share_and_every_byte_is_right) {
    TestDevice first(helper("host:1")), second(helper("host:2", "1GB/s"));
    TestDevice device(helped("host:1,host:2"));
    Model model(device, blocks());
    SUCCEEDS(model.schedule(forward(model.size())));
    const sh_stream stream = device.stream();
    run_steps(model, 4, stream);
    device.synchronize();
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    EXPECT_EQ(model.compared(), 4 * model.size());
    EXPECT_NEAR(helped_part(model), 0.6, 0.1) << "links of 2, 2 and 1 GB/s";
    EXPECT_EQ(model.stats().host_waits, 0u);
    EXPECT_GT(first.memory().used_bytes, 0u) << "the buffer is a part of the helper's budget";
    model.destroy();
    EXPECT_EQ(first.memory().used_bytes, 0u);
    EXPECT_EQ(second.memory().used_bytes, 0u);
}

TEST_F(HelpersTest, plans_count_with_the_helpers) {
    TestDevice alone(helped(""));
    uint64_t slower = 0;
    {
        Model model(alone, blocks());
        SUCCEEDS(model.schedule(forward(model.size())));
        slower = model.plan().step_ns;
    }
    TestDevice fourth(helper("host:4"));
    TestDevice third({.name = "host:3",
                      .options = options("2GB/s"),
                      .budget_bytes = 160 * kMiB,
                      .page_bytes = 64 << 10,
                      .link_bytes_per_second = 0,
                      .helpers = "host:4"});
    Model model(third, blocks());
    SUCCEEDS(model.schedule(forward(model.size())));
    EXPECT_NEAR(static_cast<double>(model.plan().step_ns), 0.5 * static_cast<double>(slower),
                0.1 * static_cast<double>(slower));
}

TEST_F(HelpersTest, auto_takes_the_open_devices_that_consent) {
    TestDevice consenting(helper("host:1"));
    DeviceSettings settings = helper("host:2");
    settings.device_flags = 0;
    TestDevice other(settings);
    TestDevice device(helped("auto"));
    Model model(device, blocks());
    SUCCEEDS(model.schedule(forward(model.size())));
    run_steps(model, 2, device.stream());
    EXPECT_NEAR(helped_part(model), 0.5, 0.1);
    EXPECT_GT(consenting.memory().used_bytes, 0u);
    EXPECT_EQ(other.memory().used_bytes, 0u);
}

TEST_F(HelpersTest, a_helper_that_streams_for_itself_is_left_alone) {
    TestDevice neighbour(helper("host:1"));
    DeviceSettings settings = helped("host:1");
    TestDevice device(settings);
    Model own(neighbour, equal_blocks(20, 24 * kMiB));
    Model model(device, blocks());
    SUCCEEDS(own.schedule(forward(own.size())));
    SUCCEEDS(model.schedule(forward(model.size())));
    run_steps(own, 1, neighbour.stream());
    run_steps(model, 1, device.stream());
    EXPECT_EQ(model.stats().helped_bytes, 0u);
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

TEST_F(HelpersTest, a_helper_without_memory_to_spare_is_left_out) {
    DeviceSettings settings = helper("host:1");
    settings.budget_bytes = 32 * kMiB;
    TestDevice neighbour(settings);
    TestDevice device(helped("host:1"));
    Model model(device, blocks());
    SUCCEEDS(model.schedule(forward(model.size())));
    run_steps(model, 2, device.stream());
    device.synchronize();
    EXPECT_EQ(model.stats().helped_bytes, 0u);
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    EXPECT_EQ(neighbour.memory().used_bytes, 0u);
}

TEST_F(HelpersTest, small_copies_and_memory_that_is_not_pinned_take_the_own_link) {
    TestDevice neighbour(helper("host:1"));
    TestDevice device(helped("host:1"));
    std::vector<BlockSpec> specs = equal_blocks(8, 24 * kMiB, Origin::pageable);
    for (int k = 0; k < 40; k++) specs.push_back({kMiB, Origin::pinned});
    Model model(device, specs);
    SUCCEEDS(model.schedule(forward(model.size())));
    run_steps(model, 2, device.stream());
    device.synchronize();
    EXPECT_EQ(model.stats().helped_bytes, 0u);
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

TEST_F(HelpersTest, wrong_helpers_are_refused_by_name) {
    const std::pair<const char*, const char*> wrong[] = {{"sim:1", "sim:1 is of another backend than host:0"},
                                                         {"host:0", "a device cannot help itself"},
                                                         {"host", "a device cannot help itself"},
                                                         {"host:99", "there is no device host:99"},
                                                         {"host:1,host:1", "host:1 is named twice"},
                                                         {"host:1,", "device name \"\" is not of the form"}};
    for (const auto& [helpers, text] : wrong) {
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.helpers = helpers;
        sh_device* device = nullptr;
        EXPECT_EQ(sh_device_open("host:0", &options, &device), SH_ERROR_INVALID_ARGUMENT) << helpers;
        EXPECT_NE(why().find(text), std::string::npos) << why();
    }
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.helpers = "auto";
    sh_device* device = nullptr;
    EXPECT_EQ(sh_device_open("sim", &options, &device), SH_ERROR_UNSUPPORTED);
    options.helpers = nullptr;
    options.device_flags = 2;
    EXPECT_EQ(sh_device_open("host:0", &options, &device), SH_ERROR_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace stagehand::test
