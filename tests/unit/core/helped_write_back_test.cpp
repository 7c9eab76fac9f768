// Write-backs that helpers copy a part of: no change is lost, and pages are used again only when helpers were asked.
#include "helpers_fixture.h"

namespace stagehand::test {
namespace {

class HelpedWriteBack : public HelpersTest {
protected:
    void SetUp() override {
        HelpersTest::SetUp();
        if (!IsSkipped()) transfer::Bond::set_least_bytes(64 << 10);  // so that the changes are worth a buffer
    }
    static std::vector<BlockSpec> blocks() { return equal_blocks(10, kBlock, Origin::pinned, SH_BLOCK_MUTABLE); }

    // The engine changes all of the block.
    static void change(Model& model, size_t i, uint64_t version, sh_stream stream, uint32_t* flags = nullptr) {
        sh_view view = SH_VIEW_INIT;
        SUCCEEDS(sh_acquire(model.runtime(), model.id(i), stream, 0, &view));
        SUCCEEDS(model.compare(i, view, stream));
        SUCCEEDS(model.overwrite(i, view, version, stream));
        SUCCEEDS(sh_release(model.runtime(), model.id(i), stream));
        if (flags) *flags = view.flags;
    }
    // Steps that change all blocks.
    static void change_all(Model& model, int steps, sh_stream stream) {
        for (int step = 1; step <= steps; step++) {
            SUCCEEDS(sh_step_begin(model.runtime()));
            for (size_t i = 0; i < model.size(); i++)
                ASSERT_NO_FATAL_FAILURE(change(model, i, static_cast<uint64_t>(step), stream));
            SUCCEEDS(sh_step_end(model.runtime()));
        }
    }
    static void expect_sources(Model& model) {
        SUCCEEDS(sh_write_back(model.runtime(), model.ids().data(), model.ids().size()));
        for (size_t i = 0; i < model.size(); i++) EXPECT_EQ(model.source(i).read(), *model.truth(i)) << "block " << i;
        EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    }
    // The helped device and its helper have links that make a write-back last for some milliseconds.
    static std::string slow() { return "capacity=512MiB;poison=1;bandwidth=200MB/s;latency=1us"; }
    static DeviceSettings slowly(DeviceSettings settings) {
        settings.options = slow();
        settings.link_bytes_per_second = 200'000'000;
        return settings;
    }
    // Steps in which helpers were found worth their memory, so that the next write-back has them.
    static void warm_up(Model& model, TestDevice& device) {
        ASSERT_NO_FATAL_FAILURE(change_all(model, 2, device.stream()));
        device.synchronize();
        SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    }
};

TEST_F(HelpedWriteBack, helpers_take_their_share_and_every_byte_is_right) {
    TestDevice first(helper("host:1")), second(helper("host:2", 1));
    TestDevice device(helped_by("host:1,host:2"));
    Model model(device, blocks());
    SUCCEEDS(model.schedule(forward(model.size())));
    const uint64_t before = first.memory().used_bytes;
    ASSERT_NO_FATAL_FAILURE(change_all(model, 4, device.stream()));
    expect_sources(model);
    const sh_runtime_stats stats = model.stats();
    EXPECT_GT(stats.bytes_to_host, 3 * 5 * kBlock);
    const double part =
        static_cast<double>(stats.helped_bytes) / static_cast<double>(stats.bytes_to_device + stats.bytes_to_host);
    EXPECT_NEAR(part, 0.6, 0.1) << "links of 2, 2 and 1 GB/s, in both directions";
    EXPECT_GT(first.memory().used_bytes, before) << "a buffer for each direction";
    model.destroy();
    EXPECT_EQ(first.memory().used_bytes, 0u);
    EXPECT_EQ(second.memory().used_bytes, 0u);
}

TEST_F(HelpedWriteBack, pages_are_used_again_after_the_helpers_were_asked) {
    TestDevice neighbour(slowly(helper("host:1")));
    TestDevice device(slowly(helped_by("host:1")));
    Model model(device, blocks());
    SUCCEEDS(model.schedule(forward(model.size())));
    ASSERT_NO_FATAL_FAILURE(warm_up(model, device));
    ASSERT_NO_FATAL_FAILURE(change(model, 0, 9, SH_STREAM_HOST));
    EXPECT_EQ(model.state(0).state, uint32_t(SH_BLOCK_DRAINING));
    const uint64_t resident = model.state(0).resident_bytes;
    ASSERT_LT(resident, kBlock);
    for (size_t i = 1; i < model.size() && model.state(0).present_bytes == kBlock; i++)
        SUCCEEDS(model.use(i, device.stream()));
    ASSERT_LT(model.state(0).present_bytes, kBlock);
    EXPECT_NE(model.state(0).state, uint32_t(SH_BLOCK_DRAINING));
    const std::vector<uint8_t> source = model.source(0).read(), &truth = *model.truth(0);
    EXPECT_TRUE(std::equal(source.begin() + static_cast<ptrdiff_t>(resident), source.end(),
                           truth.begin() + static_cast<ptrdiff_t>(resident)))
        << "the pages have other bytes now, and the source has not got them";
    device.synchronize();
    expect_sources(model);
}

TEST_F(HelpedWriteBack, the_same_block_is_there_without_a_wait) {
    TestDevice neighbour(slowly(helper("host:1")));
    TestDevice device(slowly(helped_by("host:1")));
    Model model(device, blocks());
    SUCCEEDS(model.schedule(forward(model.size())));
    ASSERT_NO_FATAL_FAILURE(warm_up(model, device));
    const sh_stream stream = device.stream();
    ASSERT_NO_FATAL_FAILURE(change(model, 0, 9, stream));
    uint32_t flags = 0;
    const uint64_t waits = model.stats().host_waits;
    ASSERT_NO_FATAL_FAILURE(change(model, 0, 10, stream, &flags));
    EXPECT_EQ(model.state(0).state, uint32_t(SH_BLOCK_DRAINING)) << "the first write-back is over";
    EXPECT_EQ(flags & SH_VIEW_WAITED, 0u);
    EXPECT_EQ(model.stats().host_waits, waits);
    device.synchronize();
    expect_sources(model);
}

TEST_F(HelpedWriteBack, the_end_is_seen_by_who_asks) {
    TestDevice neighbour(slowly(helper("host:1")));
    TestDevice device(slowly(helped_by("host:1")));
    Model model(device, blocks());
    SUCCEEDS(model.schedule(forward(model.size())));
    ASSERT_NO_FATAL_FAILURE(warm_up(model, device));
    ASSERT_NO_FATAL_FAILURE(change(model, 0, 9, SH_STREAM_HOST));
    EXPECT_EQ(model.state(0).state, uint32_t(SH_BLOCK_DRAINING));
    host::wait_for_all_work();
    EXPECT_EQ(model.state(0).state, uint32_t(SH_BLOCK_READY));
}

// The second change waits for the first one's write-back, and then for its own.
TEST_F(HelpedWriteBack, a_change_beside_a_write_back_is_waited_for) {
    TestDevice neighbour(slowly(helper("host:1")));
    TestDevice device(slowly(helped_by("host:1")));
    Model model(device, blocks());
    SUCCEEDS(model.schedule(forward(model.size())));
    ASSERT_NO_FATAL_FAILURE(warm_up(model, device));
    const sh_stream stream = device.stream();
    const uint64_t resident = model.state(0).resident_bytes;
    const auto streamed = [&](const std::vector<uint8_t>& all) {
        return std::vector<uint8_t>(all.begin() + static_cast<ptrdiff_t>(resident), all.end());
    };
    for (const uint64_t version : {9, 10}) ASSERT_NO_FATAL_FAILURE(change(model, 0, version, stream));
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    EXPECT_EQ(streamed(model.source(0).read()), streamed(*model.truth(0)));
    for (const uint64_t version : {11, 12}) ASSERT_NO_FATAL_FAILURE(change(model, 0, version, stream));
    model.destroy();
    const std::vector<uint8_t> left = model.source(0).read();
    host::wait_for_all_work();
    EXPECT_EQ(model.source(0).read(), left) << "the source was written after the runtime was destroyed";
}

TEST_F(HelpedWriteBack, an_update_of_the_source_comes_after_it) {
    TestDevice neighbour(slowly(helper("host:1")));
    TestDevice device(slowly(helped_by("host:1")));
    Model model(device, blocks());
    SUCCEEDS(model.schedule(forward(model.size())));
    ASSERT_NO_FATAL_FAILURE(warm_up(model, device));
    ASSERT_NO_FATAL_FAILURE(change(model, 0, 9, device.stream()));
    const sh_block id = model.id(0);
    SUCCEEDS(sh_source_update_begin(model.runtime(), &id, 1));
    EXPECT_EQ(model.source(0).read(), *model.truth(0)) << "the change was not written before the update";
    model.change(0, 20);
    SUCCEEDS(sh_source_update_end(model.runtime(), &id, 1));
    SUCCEEDS(model.use(0, device.stream()));
    device.synchronize();
    expect_sources(model);
}

TEST_F(HelpedWriteBack, a_block_goes_when_its_source_has_the_change) {
    TestDevice neighbour(slowly(helper("host:1")));
    TestDevice device(slowly(helped_by("host:1")));
    Model model(device, blocks());
    SUCCEEDS(model.schedule(forward(model.size())));
    ASSERT_NO_FATAL_FAILURE(warm_up(model, device));
    ASSERT_NO_FATAL_FAILURE(change(model, 0, 9, device.stream()));
    const sh_block id = model.id(0);
    SUCCEEDS(sh_unregister_blocks(model.runtime(), &id, 1));
    EXPECT_EQ(model.source(0).read(), *model.truth(0));
}

TEST_F(HelpedWriteBack, the_buffers_go_with_the_plan_and_come_back) {
    TestDevice neighbour(helper("host:1"));
    TestDevice device(helped_by("host:1"));
    Model model(device, blocks());
    SUCCEEDS(model.schedule(forward(model.size())));
    ASSERT_NO_FATAL_FAILURE(warm_up(model, device));
    const uint64_t both = neighbour.memory().used_bytes;
    SUCCEEDS(sh_trim(model.runtime(), 0, nullptr));
    EXPECT_EQ(neighbour.memory().used_bytes, 0u);
    const uint64_t before = model.stats().helped_bytes;
    ASSERT_NO_FATAL_FAILURE(warm_up(model, device));
    EXPECT_EQ(neighbour.memory().used_bytes, both);
    EXPECT_GT(model.stats().helped_bytes, before);
    expect_sources(model);
}

// Loads are helped, and a few changes are not worth a buffer.
TEST_F(HelpedWriteBack, few_changes_take_the_own_link) {
    TestDevice neighbour(helper("host:1"));
    TestDevice device(helped_by("host:1"));
    std::vector<BlockSpec> specs = blocks();
    for (size_t i = 1; i < specs.size(); i++) specs[i].flags = 0;
    Model model(device, specs);
    SUCCEEDS(model.schedule(forward(model.size())));
    run_steps(model, 1, device.stream());
    ASSERT_NO_FATAL_FAILURE(change(model, 0, 1, device.stream()));
    device.synchronize();
    EXPECT_EQ(neighbour.memory().used_bytes, 16 * kMiB) << "a sixteenth of the budget, for one direction";
    EXPECT_GT(model.stats().helped_bytes, 0u);
    expect_sources(model);
}

}  // namespace
}  // namespace stagehand::test
