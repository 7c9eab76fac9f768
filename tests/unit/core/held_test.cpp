// Views that are held at once: max_held views fit. One view more is an error that names the holder. An acquire never
// waits for a release.
#include <atomic>
#include <cstring>
#include <thread>

#include "engine.h"

namespace stagehand::test {
namespace {

sh_runtime_options holding(uint32_t max_held) {
    sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
    options.max_held = max_held;
    return options;
}

class Held : public testing::TestWithParam<uint32_t> {};

// A window of views slides over the order.
TEST_P(Held, a_window_of_views) {
    const uint32_t window = GetParam();
    for (const bool on_stream : {false, true}) {
        TestDevice device({.budget_bytes = window * 6 * kPage + 6 * kPage});
        Model model(device, equal_blocks(11, 6 * kPage - 50, on_stream ? Origin::pinned : Origin::pageable),
                    holding(window));
        SUCCEEDS(model.schedule(forward(11)));
        const sh_stream stream = on_stream ? device.stream() : SH_STREAM_HOST;
        for (int k = 0; k < 4; k++) {
            SUCCEEDS(sh_step_begin(model.runtime(), nullptr));
            for (size_t i = 0; i < 11 + window - 1; i++) {
                if (i < 11) {
                    sh_view view = SH_VIEW_INIT;
                    SUCCEEDS(sh_acquire(model.runtime(), model.id(i), stream, 0, &view));
                    SUCCEEDS(model.compare(i, view, stream));
                }
                if (i + 1 < window) continue;
                // Blocks that stayed held are still there.
                const size_t last = i + 1 - window;
                sh_view again = SH_VIEW_INIT;
                SUCCEEDS(sh_acquire(model.runtime(), model.id(last), stream, 0, &again));
                SUCCEEDS(model.compare(last, again, stream));
                SUCCEEDS(sh_release(model.runtime(), model.id(last), stream));
                SUCCEEDS(sh_release(model.runtime(), model.id(last), stream));
            }
            SUCCEEDS(sh_step_end(model.runtime()));
        }
        device.synchronize();
        EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    }
}

// Uses the smallest budget for the window. The number of blocks makes the ring meet itself at the edge of a step.
TEST_P(Held, smallest_budget_of_a_window) {
    const uint32_t window = GetParam();
    TestDevice device({.budget_bytes = window * 5 * kPage});
    Model model(device, equal_blocks(12, 5 * kPage, Origin::pageable), holding(window));
    SUCCEEDS(model.schedule(forward(12)));
    EXPECT_EQ(model.plan().smallest_budget_bytes, window * 5 * kPage);
    for (int k = 0; k < 3; k++) {
        SUCCEEDS(sh_step_begin(model.runtime(), nullptr));
        for (size_t i = 0; i < 12 + window - 1; i++) {
            if (i >= window) {
                SUCCEEDS(sh_release(model.runtime(), model.id(i - window), SH_STREAM_HOST));
            }
            if (i >= 12) continue;
            sh_view view = SH_VIEW_INIT;
            SUCCEEDS(sh_acquire(model.runtime(), model.id(i), SH_STREAM_HOST, 0, &view));
            SUCCEEDS(model.compare(i, view, SH_STREAM_HOST));
        }
        SUCCEEDS(sh_release(model.runtime(), model.id(11), SH_STREAM_HOST));
        SUCCEEDS(sh_step_end(model.runtime()));
    }
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

INSTANTIATE_TEST_SUITE_P(Windows, Held, testing::Values(1u, 2u, 3u));

// A source that waits until it is let go, and fails if it is told so.
struct SlowSource {
    std::atomic<bool> asked{false}, let_go{false}, fails{false};

    static int32_t fill(void* buffer, uint64_t, uint64_t bytes, void* self) {
        auto& at = *static_cast<SlowSource*>(self);
        at.asked = true;
        while (!at.let_go) std::this_thread::yield();
        std::memset(buffer, 7, bytes);
        return at.fails ? -1 : 0;
    }
    sh_block add_to(sh_runtime* runtime) {
        sh_segment segment = SH_SEGMENT_INIT;
        segment.kind = SH_SOURCE_FILL;
        segment.fill = fill;
        segment.user_data = this;
        segment.bytes = 2 * kPage;
        sh_block_desc block = SH_BLOCK_DESC_INIT;
        block.flags = SH_BLOCK_UNORDERED;
        block.bytes = 2 * kPage;
        block.segments = &segment;
        block.segment_count = 1;
        sh_block id = 0;
        EXPECT_SUCCEEDS(sh_register_blocks(runtime, &block, 1, &id));
        return id;
    }
};

// A release without a view of its own would otherwise end the view that another call is about to give, and a failing
// acquire would end it once more.
TEST(Holding, no_release_ends_what_an_acquire_under_way_holds) {
    for (const bool fails : {false, true}) {
        TestDevice device({.budget_bytes = 16 * kPage});
        Model model(device, equal_blocks(2, 2 * kPage));
        SlowSource source;
        source.fails = fails;
        const sh_block block = source.add_to(model.runtime());
        sh_status acquired = SH_OK;
        std::jthread engine([&] {
            sh_view view = SH_VIEW_INIT;
            acquired = sh_acquire(model.runtime(), block, SH_STREAM_HOST, 0, &view);
        });
        while (!source.asked) std::this_thread::yield();
        EXPECT_EQ(sh_release(model.runtime(), block, SH_STREAM_HOST), SH_ERROR_INVALID_STATE);
        source.let_go = true;
        engine.join();
        EXPECT_EQ(acquired, fails ? SH_ERROR_CALLBACK : SH_OK);
        EXPECT_EQ(sh_release(model.runtime(), block, SH_STREAM_HOST), fails ? SH_ERROR_INVALID_STATE : SH_OK);
        sh_block_state state = SH_BLOCK_STATE_INIT;
        SUCCEEDS(sh_block_get_state(model.runtime(), block, &state));
        EXPECT_EQ(state.held, 0u);
        SUCCEEDS(model.use(0));
    }
}

TEST(Holding, too_many_names_the_holder) {
    TestDevice device({.budget_bytes = 6 * kPage});
    std::vector<BlockSpec> specs = equal_blocks(5, 6 * kPage);
    for (size_t i = 0; i < specs.size(); i++) specs[i].name = "layer." + std::to_string(i);
    Model model(device, specs);
    SUCCEEDS(model.schedule(forward(5)));
    SUCCEEDS(sh_step_begin(model.runtime(), nullptr));
    sh_view view = SH_VIEW_INIT, other = SH_VIEW_INIT;
    SUCCEEDS(sh_acquire(model.runtime(), model.id(0), SH_STREAM_HOST, 0, &view));
    EXPECT_EQ(sh_acquire(model.runtime(), model.id(1), SH_STREAM_HOST, 0, &other), SH_ERROR_HELD);
    EXPECT_NE(why().find("layer.0"), std::string::npos) << why();
    EXPECT_NE(why().find("layer.1"), std::string::npos) << why();
    EXPECT_NE(why().find("max_held"), std::string::npos) << why();
    // The failed acquire has changed nothing.
    EXPECT_EQ(model.state(0).held, 1u);
    EXPECT_EQ(model.state(1).held, 0u);
    SUCCEEDS(model.compare(0, view, SH_STREAM_HOST));
    SUCCEEDS(sh_release(model.runtime(), model.id(0), SH_STREAM_HOST));
    SUCCEEDS(model.use(1));
    SUCCEEDS(sh_step_end(model.runtime()));
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

// No block is outside the order while the order is unknown. The text should therefore advise to set max_held.
TEST(Holding, too_many_while_the_order_is_learned_names_max_held) {
    TestDevice device({.budget_bytes = 8 * kPage});
    std::vector<BlockSpec> specs = equal_blocks(6, 4 * kPage);
    for (size_t i = 0; i < specs.size(); i++) specs[i].name = "layer." + std::to_string(i);
    Model model(device, specs);
    SUCCEEDS(sh_step_begin(model.runtime(), nullptr));
    sh_view view = SH_VIEW_INIT;
    for (size_t i = 0; i < 2; i++) SUCCEEDS(sh_acquire(model.runtime(), model.id(i), SH_STREAM_HOST, 0, &view));
    EXPECT_EQ(sh_acquire(model.runtime(), model.id(2), SH_STREAM_HOST, 0, &view), SH_ERROR_HELD);
    for (const char* const part : {"layer.0\" and others", "being learned", "max_held", "schedule"})
        EXPECT_NE(why().find(part), std::string::npos) << part << ": " << why();
    EXPECT_EQ(why().find("unordered_bytes"), std::string::npos) << why();
    for (size_t i = 0; i < 2; i++) SUCCEEDS(sh_release(model.runtime(), model.id(i), SH_STREAM_HOST));
    SUCCEEDS(sh_step_end(model.runtime()));
    // A runtime that follows the advice is refused before it begins, and the text says why.
    Model three(device, equal_blocks(6, 4 * kPage), holding(3));
    EXPECT_EQ(three.use(0), SH_ERROR_BUDGET);
    EXPECT_NE(why().find("max_held, 3,"), std::string::npos) << why();
    model.destroy();
    three.destroy();
    SUCCEEDS(sh_device_set_budget(device.get(), 12 * kPage));
    Model fits(device, equal_blocks(6, 4 * kPage), holding(3));
    SUCCEEDS(sh_step_begin(fits.runtime(), nullptr));
    for (size_t i = 0; i < 3; i++) SUCCEEDS(sh_acquire(fits.runtime(), fits.id(i), SH_STREAM_HOST, 0, &view));
    for (size_t i = 0; i < 3; i++) SUCCEEDS(sh_release(fits.runtime(), fits.id(i), SH_STREAM_HOST));
    SUCCEEDS(sh_step_end(fits.runtime()));
}

// Blocks outside the order need more memory of their own instead.
TEST(Holding, too_many_outside_the_order_names_their_memory) {
    for (const bool ordered_too : {false, true}) {
        TestDevice device({.budget_bytes = 12 * kPage});
        sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
        options.unordered_bytes = 4 * kPage;
        std::vector<BlockSpec> specs = equal_blocks(4, 4 * kPage, Origin::pinned, SH_BLOCK_UNORDERED);
        for (int k = 0; ordered_too && k < 4; k++) specs.push_back({4 * kPage});
        Model model(device, specs, options);
        if (ordered_too) {
            SUCCEEDS(model.schedule({4, 5, 6, 7}));
        }
        sh_view view = SH_VIEW_INIT;
        size_t held = 0;
        sh_status status = SH_OK;
        while (held < 4 && (status = sh_acquire(model.runtime(), model.id(held), SH_STREAM_HOST, 0, &view)) == SH_OK)
            held++;
        EXPECT_EQ(status, SH_ERROR_HELD);
        EXPECT_NE(why().find("larger unordered_bytes"), std::string::npos) << why();
        EXPECT_EQ(why().find("max_held"), std::string::npos) << why();
        EXPECT_EQ(why().find(" and others") != std::string::npos, held > 1) << why();
        for (size_t i = 0; i < held; i++) SUCCEEDS(sh_release(model.runtime(), model.id(i), SH_STREAM_HOST));
    }
}

TEST(Holding, a_view_held_over_the_steps_end_stays) {
    TestDevice device({.budget_bytes = 18 * kPage});
    Model model(device, equal_blocks(8, 6 * kPage, Origin::pageable), holding(2));
    SUCCEEDS(model.schedule(forward(8)));
    SUCCEEDS(model.step(forward(8)));
    sh_view view = SH_VIEW_INIT;
    SUCCEEDS(sh_acquire(model.runtime(), model.id(3), SH_STREAM_HOST, 0, &view));
    for (int k = 0; k < 3; k++) {
        SUCCEEDS(sh_step_begin(model.runtime(), nullptr));
        for (size_t i = 0; i < 8; i++) {
            const sh_status status = model.use(i);
            EXPECT_TRUE(status == SH_OK || status == SH_ERROR_HELD) << why();  // the view may block some loads
        }
        SUCCEEDS(model.compare(3, view, SH_STREAM_HOST));
        SUCCEEDS(sh_step_end(model.runtime()));
    }
    SUCCEEDS(sh_release(model.runtime(), model.id(3), SH_STREAM_HOST));
    for (int k = 0; k < 3; k++) SUCCEEDS(model.step(forward(8)));
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

TEST(Holding, acquire_many_is_all_or_none) {
    TestDevice device({.budget_bytes = 12 * kPage});
    Model model(device, equal_blocks(6, 4 * kPage, Origin::pageable), holding(3));
    SUCCEEDS(model.schedule(forward(6)));
    const sh_block three[] = {model.id(0), model.id(1), model.id(2)},
                   four[] = {model.id(0), model.id(1), model.id(2), model.id(3)};
    sh_view views[4] = {SH_VIEW_INIT, SH_VIEW_INIT, SH_VIEW_INIT, SH_VIEW_INIT};
    SUCCEEDS(sh_step_begin(model.runtime(), nullptr));
    SUCCEEDS(sh_acquire_many(model.runtime(), three, 3, SH_STREAM_HOST, 0, views));
    for (size_t i = 0; i < 3; i++) SUCCEEDS(model.compare(i, views[i], SH_STREAM_HOST));
    for (const sh_block block : three) SUCCEEDS(sh_release(model.runtime(), block, SH_STREAM_HOST));
    EXPECT_EQ(sh_acquire_many(model.runtime(), four, 4, SH_STREAM_HOST, 0, views), SH_ERROR_HELD) << why();
    for (size_t i = 0; i < 6; i++) EXPECT_EQ(model.state(i).held, 0u) << i;
    const sh_block twice[] = {model.id(4), model.id(5), model.id(4)};
    SUCCEEDS(sh_acquire_many(model.runtime(), twice, 3, SH_STREAM_HOST, 0, views));
    EXPECT_EQ(model.state(4).held, 2u);
    EXPECT_EQ(views[0].address, views[2].address);
    for (const sh_block block : twice) SUCCEEDS(sh_release(model.runtime(), block, SH_STREAM_HOST));
    EXPECT_EQ(model.state(4).held, 0u);
    SUCCEEDS(sh_step_end(model.runtime()));
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

// The plan for the second kind leaves two blocks out, which the first kind holds together. They have places in the ring
// if the engine tells the kinds by name, and else memory beside it.
TEST(Holding, a_kind_holds_as_many_blocks_that_another_kind_leaves_out) {
    for (const bool named : {true, false}) {
        TestDevice device({.budget_bytes = (named ? 12 : 16) * kPage});
        Model model(device, equal_blocks(8, 4 * kPage), holding(2));
        const auto pairs = [&] {
            SUCCEEDS(sh_step_begin(model.runtime(), named ? "pairs" : nullptr));
            for (size_t i = 0; i < 8; i += 2) {
                sh_view views[2] = {SH_VIEW_INIT, SH_VIEW_INIT};
                SUCCEEDS(sh_acquire_many(model.runtime(), &model.ids()[i], 2, SH_STREAM_HOST, 0, views));
                for (const size_t k : {0, 1}) SUCCEEDS(model.compare(i + k, views[k], SH_STREAM_HOST));
                for (const size_t k : {0, 1}) SUCCEEDS(sh_release(model.runtime(), model.id(i + k), SH_STREAM_HOST));
            }
            SUCCEEDS(sh_step_end(model.runtime()));
        };
        pairs();
        for (int again = 0; again < 2; again++) {
            SUCCEEDS(sh_step_begin(model.runtime(), named ? "one by one" : nullptr));
            for (size_t i = 2; i < 8; i++) SUCCEEDS(model.use(i, SH_STREAM_HOST));
            SUCCEEDS(sh_step_end(model.runtime()));
        }
        for (int k = 0; k < 3; k++) pairs();
        EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    }
}

// Steps of two kinds: one holds four blocks at a time, the other holds one, backwards and not all of them. The second
// time that the first kind comes, it is not in the mix yet, because nobody knows its times.
TEST(Holding, kinds_in_turn_hold_as_many_blocks_as_each_alone) {
    TestDevice device({.budget_bytes = 28 * kPage});
    Model model(device, equal_blocks(8, 4 * kPage), holding(4));
    uint32_t outside_the_mix = 0;
    for (int turn = 0; turn < 4; turn++) {
        SUCCEEDS(sh_step_begin(model.runtime(), "by fours"));
        for (size_t first = 0; first < 8; first += 4) {
            sh_view views[4] = {SH_VIEW_INIT, SH_VIEW_INIT, SH_VIEW_INIT, SH_VIEW_INIT};
            SUCCEEDS(sh_acquire_many(model.runtime(), &model.ids()[first], 4, SH_STREAM_HOST, 0, views));
            for (size_t k = 0; k < 4; k++) SUCCEEDS(model.compare(first + k, views[k], SH_STREAM_HOST));
            for (size_t k = 0; k < 4; k++) SUCCEEDS(sh_release(model.runtime(), model.id(first + k), SH_STREAM_HOST));
        }
        SUCCEEDS(sh_step_end(model.runtime()));
        sh_kind_info kinds[2] = {SH_KIND_INFO_INIT, SH_KIND_INFO_INIT};
        uint64_t count = 0;
        SUCCEEDS(sh_kind_list(model.runtime(), kinds, 2, &count));
        outside_the_mix += turn && !kinds[0].planned;
        for (int again = 0; again < 2; again++) {
            SUCCEEDS(sh_step_begin(model.runtime(), "one by one"));
            for (const size_t i : {7, 5, 4, 2, 1}) SUCCEEDS(model.use(i, SH_STREAM_HOST));
            SUCCEEDS(sh_step_end(model.runtime()));
        }
    }
    EXPECT_GT(outside_the_mix, 0u) << "both kinds were planned for";
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

TEST(Holding, no_wait_gives_not_ready_and_holds_nothing) {
    DeviceSettings slow{.budget_bytes = 12 * kPage};
    slow.options += ";latency=3ms";
    for (const Origin origin : {Origin::pinned, Origin::pageable}) {
        TestDevice device(slow);
        Model model(device, equal_blocks(6, 6 * kPage, origin));
        SUCCEEDS(model.schedule(forward(6)));
        int not_ready = 0;
        for (int k = 0; k < 2; k++) {
            SUCCEEDS(sh_step_begin(model.runtime(), nullptr));
            for (size_t i = 0; i < 6; i++) {
                sh_status status;
                while ((status = model.use(i, SH_STREAM_HOST, SH_ACQUIRE_NO_WAIT)) == SH_NOT_READY) {
                    EXPECT_EQ(model.state(i).held, 0u);
                    not_ready++;
                }
                SUCCEEDS(status);
            }
            SUCCEEDS(sh_step_end(model.runtime()));
        }
        if (on_host_backend()) {  // other devices have a fixed speed
            EXPECT_GT(not_ready, 0);
        }
        EXPECT_EQ(model.stats().host_waits, 0u);
        EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    }
}

// Pinned sources need no wait on the host if a stream can wait.
TEST(Holding, no_wait_on_a_stream_with_pinned_sources_is_always_ready) {
    DeviceSettings slow{.budget_bytes = 12 * kPage};
    slow.options += ";latency=2ms";
    TestDevice device(slow);
    Model model(device, equal_blocks(6, 6 * kPage));
    SUCCEEDS(model.schedule(forward(6)));
    const sh_stream stream = device.stream();
    SUCCEEDS(sh_step_begin(model.runtime(), nullptr));
    for (size_t i = 0; i < 6; i++) SUCCEEDS(model.use(i, stream, SH_ACQUIRE_NO_WAIT));
    SUCCEEDS(sh_step_end(model.runtime()));
    device.synchronize();
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    EXPECT_EQ(model.stats().host_waits, 0u);
}

}  // namespace
}  // namespace stagehand::test
