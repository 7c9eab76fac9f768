// Helpers that fail while a step is captured, or after a launch.
#include "helped_graphs.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kAll = UINT64_MAX;

TEST_F(HelpedGraphs, a_helper_that_fails_after_a_launch_is_told_and_has_no_part_in_others) {
    Planned planned;
    auto& [device, model, stream] = planned;
    Step step(device, model), own(device, model);
    ASSERT_NO_FATAL_FAILURE(step.capture(stream, forward(kBlocks)));
    SUCCEEDS(step.launch(stream));
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    SUCCEEDS(step.launch(stream));
    device.synchronize();
    DRIVER(sh_test_answer)(false);
    EXPECT_EQ(sh_runtime_synchronize(model.runtime()), SH_ERROR_BACKEND);
    EXPECT_NE(why().find("a device that helps has failed"), std::string::npos) << why();
    const uint64_t before = model.stats().bytes_to_device;
    SUCCEEDS(model.use(kBlocks - 1, SH_STREAM_HOST));
    EXPECT_GE(model.stats().bytes_to_device, before + kLarge) << "what the launch has left is loaded again, too";
    EXPECT_EQ(step.launch(stream), SH_ERROR_STALE);
    EXPECT_NE(why().find("capture:1"), std::string::npos) << why();
    ASSERT_NO_FATAL_FAILURE(own.capture(stream, forward(kBlocks)));
    SUCCEEDS(own.launch(stream));
    device.synchronize();
    EXPECT_EQ(own.compared(), kBlocks);
    EXPECT_EQ(own.wrong() + step.wrong(), 0u);
}

// At every copy of the helper. The acquire that needs the copy fails, and the capture goes on with the own link, with
// that block or without.
TEST_F(HelpedGraphs, captures_go_on_if_the_helper_refuses_a_copy) {
    slow_down(96 * kMiB, "500MB/s");  // slots of 1 MiB
    Planned planned;
    auto& [device, model, stream] = planned;
    const auto refuse = DRIVER(sh_test_refuse);
    uint64_t copies = 0;
    {
        Step step(device, model);
        refuse(SH_TEST_HELPERS_COPY, 0, 0);
        ASSERT_NO_FATAL_FAILURE(step.capture(stream, forward(kBlocks)));
        copies = refuse(SH_TEST_HELPERS_COPY, 0, 0);
    }
    ASSERT_GE(copies, 4u);
    for (uint64_t k = 0; k < 2 * copies; k++) {
        const uint64_t after = k / 2;
        const bool again = k % 2;
        SCOPED_TRACE(k);
        Step step(device, model);
        SUCCEEDS(step.begin(stream));
        refuse(SH_TEST_HELPERS_COPY, after, kAll);
        uint64_t failed = 0;
        for (const size_t i : forward(kBlocks)) {
            if (step.use(i) == SH_OK) continue;
            failed++;
            EXPECT_NE(why().find("capture:1"), std::string::npos) << why();
            if (!again) continue;
            SUCCEEDS(step.use(i));
        }
        refuse(SH_TEST_HELPERS_COPY, 0, 0);
        EXPECT_EQ(failed, 1u);
        const size_t used = kBlocks - (again ? 0 : 1);
        SUCCEEDS(step.end());
        SUCCEEDS(step.launch(stream));
        SUCCEEDS(step.launch(stream));
        SUCCEEDS(model.step(forward(kBlocks), stream));
        device.synchronize();
        EXPECT_EQ(step.compared(), 2 * used);
        EXPECT_EQ(step.wrong(), 0u);
    }
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

TEST_F(HelpedGraphs, a_helper_without_streams_has_no_part) {
    Planned planned;
    auto& [device, model, stream] = planned;
    Step step(device, model), again(device, model);
    DRIVER(sh_test_refuse)(SH_TEST_HELPERS_STREAM, 0, kAll);
    ASSERT_NO_FATAL_FAILURE(step.capture(stream, forward(kBlocks)));
    EXPECT_GT(DRIVER(sh_test_refuse)(SH_TEST_HELPERS_STREAM, 0, 0), 0u);
    SUCCEEDS(step.launch(stream));
    const uint64_t before = model.stats().helped_bytes;
    SUCCEEDS(step.launch(stream));
    EXPECT_EQ(model.stats().helped_bytes, before);
    ASSERT_NO_FATAL_FAILURE(again.capture(stream, forward(kBlocks)));
    SUCCEEDS(again.launch(stream));
    EXPECT_GT(model.stats().helped_bytes, before);
    device.synchronize();
    EXPECT_EQ(step.wrong() + again.wrong(), 0u);
}

// Captures a step in which each refused call is made again once, or is not. Returns whether there is a graph.
bool capture_in_spite(Step& step, sh_stream stream, bool again) {
    if (step.begin(stream) != SH_OK) {
        step.give_up();
        return false;
    }
    for (const size_t i : forward(kBlocks))
        if (step.use(i) != SH_OK && again) {
            EXPECT_SUCCEEDS(step.use(i));
        }
    return step.end() == SH_OK;
}

// A stream that has joined a capture must come back to it, and copies wait for what they must, whichever call was
// refused.
class HelpedRefusals : public HelpedGraphs, public testing::WithParamInterface<sh_test_call> {};
INSTANTIATE_TEST_SUITE_P(Calls, HelpedRefusals, testing::Values(SH_TEST_WAIT, SH_TEST_RECORD),
                         [](const auto& info) { return info.param == SH_TEST_WAIT ? "waits" : "records"; });

TEST_P(HelpedRefusals, captures_fail_or_bring_every_byte) {
    slow_down(256 * kMiB, "500MB/s");
    Planned planned;
    auto& [device, model, stream] = planned;
    const auto refuse = DRIVER(sh_test_refuse);
    uint64_t graphs = 0, k = 0;
    for (bool reached = true; reached; k++) {
        SCOPED_TRACE(k);
        Step step(device, model);
        refuse(GetParam(), k / 2, 1);
        const bool again = k % 2, made = capture_in_spite(step, stream, again);
        reached = refuse(GetParam(), 0, 0) > k / 2;
        if (!made) continue;
        graphs++;
        SUCCEEDS(step.launch(stream));
        device.synchronize();
        EXPECT_GE(step.compared(), again ? kBlocks : kBlocks - 1);
        EXPECT_EQ(step.wrong(), 0u);
    }
    EXPECT_GT(k, 40u);
    EXPECT_GT(graphs, k / 3);
    SUCCEEDS(model.step(forward(kBlocks), stream));
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

// What the helper has brought of a load that failed comes late, and must not overwrite what later loads bring.
TEST_F(HelpedGraphs, captures_fail_or_bring_every_byte_if_a_copy_and_a_wait_are_refused) {
    slow_down(96 * kMiB, "50MB/s");  // slots of 1 MiB
    TestDevice device(helped());
    Model model(device, blocks());
    ASSERT_NO_FATAL_FAILURE(plan(model));
    const sh_stream stream = device.stream();
    const auto refuse = DRIVER(sh_test_refuse);
    // Captures the blocks whose acquire does not fail. Returns the number of waits until one has failed.
    const auto capture = [&](Step& step, uint64_t refused_wait) {
        refuse(SH_TEST_HELPERS_COPY, 1, kAll);
        refuse(SH_TEST_WAIT, refused_wait, 1);
        EXPECT_SUCCEEDS(step.begin(stream));
        uint64_t waits = 0;
        for (const size_t i : forward(kBlocks)) {
            if (step.use(i) == SH_OK || waits) continue;
            waits = refuse(SH_TEST_WAIT, 0, 0);
        }
        return waits;
    };
    uint64_t waits = 0;
    {
        Step step(device, model);
        waits = capture(step, kAll);
        SUCCEEDS(step.end());
    }
    constexpr uint64_t kLast = 6;
    ASSERT_GT(waits, kLast);
    uint64_t failed = 0;
    for (uint64_t k = 1; k <= kLast; k++) {
        SCOPED_TRACE(k);
        Step step(device, model);
        capture(step, waits - k);
        refuse(SH_TEST_HELPERS_COPY, 0, 0);
        if (step.end() != SH_OK) {
            failed++;
            continue;
        }
        SUCCEEDS(step.launch(stream));
        device.synchronize();
        EXPECT_EQ(step.wrong(), 0u);
    }
    EXPECT_GT(failed, 0u);
    EXPECT_LT(failed, kLast);
}

struct Refusing {
    int refusals = 0;

    static int32_t on_load(const sh_loaded_range*, void* user_data) {
        return static_cast<Refusing*>(user_data)->refusals-- > 0;
    }
};

TEST_F(HelpedGraphs, what_helpers_brought_for_a_failed_load_is_not_counted) {
    TestDevice device(helped());
    Refusing refusing[kBlocks];
    std::vector<BlockSpec> specs = blocks();
    for (size_t i = 0; i < kBlocks; i++) {
        specs[i].on_load = Refusing::on_load;
        specs[i].user_data = &refusing[i];
    }
    Model model(device, specs);
    ASSERT_NO_FATAL_FAILURE(plan(model));
    const sh_stream stream = device.stream();
    size_t streamed = kBlocks - 1;
    while (streamed > 0 && !model.state(streamed).streamed_bytes) streamed--;
    uint64_t helped_bytes[2] = {};
    for (const int refusals : {0, 3}) {
        Step step(device, model);
        refusing[streamed].refusals = refusals;
        SUCCEEDS(step.begin(stream));
        for (const size_t i : forward(kBlocks)) {
            for (int left = i == streamed ? refusals : 0; left > 0; left--) EXPECT_EQ(step.use(i), SH_ERROR_CALLBACK);
            SUCCEEDS(step.use(i));
        }
        SUCCEEDS(step.end());
        SUCCEEDS(step.launch(stream));
        const uint64_t before = model.stats().helped_bytes;
        SUCCEEDS(step.launch(stream));
        helped_bytes[refusals != 0] = model.stats().helped_bytes - before;
        device.synchronize();
        EXPECT_EQ(step.wrong(), 0u);
    }
    EXPECT_GT(helped_bytes[0], 0u);
    EXPECT_EQ(helped_bytes[1], helped_bytes[0]);
}

// It may have failed in the launch.
TEST_F(HelpedGraphs, a_helper_that_cannot_wait_for_a_launch_is_told_and_left_out) {
    for (const uint64_t wait : {1, 2}) {  // the first is the lane's
        SCOPED_TRACE(wait);
        Captured captured;
        auto& [device, model, stream, step] = captured;
        SUCCEEDS(step.launch(stream));
        SUCCEEDS(sh_runtime_synchronize(model.runtime()));
        SUCCEEDS(step.enter(stream));
        DRIVER(sh_test_refuse)(SH_TEST_WAIT, wait, 1);
        SUCCEEDS(step.launch_entered(stream));
        EXPECT_GT(DRIVER(sh_test_refuse)(SH_TEST_WAIT, 0, 0), wait);
        device.synchronize();
        EXPECT_EQ(sh_runtime_synchronize(model.runtime()), SH_ERROR_BACKEND);
        EXPECT_NE(why().find("a device that helps has failed"), std::string::npos) << why();
        EXPECT_EQ(step.launch(stream), SH_ERROR_STALE);
        SUCCEEDS(model.step(forward(kBlocks), stream));
        device.synchronize();
        EXPECT_EQ(step.wrong(), 0u);
        EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    }
}

// The call waits for the launch, and its error is not that of the helper, which is asked later.
TEST_F(HelpedGraphs, a_helper_that_fails_in_a_launch_is_told_even_if_leaving_the_graph_has_failed) {
    Captured captured;
    auto& [device, model, stream, step] = captured;
    SUCCEEDS(step.launch(stream));
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    SUCCEEDS(step.enter(stream));
    DRIVER(sh_test_refuse)(SH_TEST_WAIT, 0, 1);
    EXPECT_EQ(step.launch_entered(stream), SH_ERROR_BACKEND);
    EXPECT_NE(why().find("refuses the wait"), std::string::npos) << why();
    DRIVER(sh_test_answer)(false);
    EXPECT_EQ(sh_runtime_synchronize(model.runtime()), SH_ERROR_BACKEND);
    EXPECT_NE(why().find("a device that helps has failed"), std::string::npos) << why();
    EXPECT_EQ(step.launch(stream), SH_ERROR_STALE);
    EXPECT_EQ(step.wrong(), 0u);
}

// The failure is told before the graph is left, because of a load before the launch. It is told again for the launch.
TEST_F(HelpedGraphs, what_a_launch_brings_is_loaded_again_if_a_helper_fails_before_the_graph_is_left) {
    TestDevice device(helped());
    Model model(device, blocks());
    const sh_block protect = model.id(0);
    SUCCEEDS(sh_protect_blocks(model.runtime(), &protect, 1));
    ASSERT_NO_FATAL_FAILURE(plan(model));
    ASSERT_EQ(model.state(0).streamed_bytes, 0u);
    std::vector<size_t> streamed;
    for (size_t i = 0; i < kBlocks; i++)
        if (model.state(i).streamed_bytes) streamed.push_back(i);
    const sh_stream stream = device.stream();
    Step step(device, model);
    ASSERT_NO_FATAL_FAILURE(step.capture(stream, streamed));
    SUCCEEDS(step.launch(stream));
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    SUCCEEDS(sh_invalidate_blocks(model.runtime(), &protect, 1));
    SUCCEEDS(model.use(0, SH_STREAM_HOST));
    SUCCEEDS(step.enter(stream));
    DRIVER(sh_test_answer)(false);
    EXPECT_EQ(sh_runtime_synchronize(model.runtime()), SH_ERROR_BACKEND);
    EXPECT_NE(why().find("a device that helps has failed"), std::string::npos) << why();
    SUCCEEDS(step.launch_entered(stream));
    EXPECT_EQ(sh_runtime_synchronize(model.runtime()), SH_ERROR_BACKEND);
    EXPECT_NE(why().find("a device that helps has failed"), std::string::npos) << why();
    const uint64_t before = model.stats().bytes_to_device;
    SUCCEEDS(model.use(streamed.back(), SH_STREAM_HOST));
    EXPECT_GE(model.stats().bytes_to_device, before + kLarge);
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

// Nothing that it has brought is in doubt, so that nothing is told and nothing is loaded again.
TEST_F(HelpedGraphs, a_helper_that_fails_while_it_has_nothing_to_do_is_left_out) {
    Captured captured;
    auto& [device, model, stream, step] = captured;
    SUCCEEDS(step.launch(stream));
    device.synchronize();
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    DRIVER(sh_test_answer)(false);
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    EXPECT_EQ(step.launch(stream), SH_ERROR_STALE);
    EXPECT_NE(why().find("capture:1"), std::string::npos) << why();
    SUCCEEDS(model.step(forward(kBlocks), stream));
    device.synchronize();
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

}  // namespace
}  // namespace stagehand::test
