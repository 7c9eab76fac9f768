// Views that are held at once: max_held views fit. One view more is an error that names the holder. An acquire never
// waits for a release.
#include <atomic>
#include <cstring>
#include <thread>

#include "engine.h"

namespace stagehand::test {
namespace {

RuntimeSettings holding(uint32_t max_held) { return {.max_held = max_held}; }

class Held : public testing::TestWithParam<uint32_t> {};

// A window of views slides over the order.
TEST_P(Held, a_window_of_views) {
    const uint32_t window = GetParam();
    for (const bool on_stream : {false, true}) {
        SoloModel model({.budget_bytes = window * 6 * kPage + 6 * kPage},
                        equal_blocks(11, 6 * kPage - 50, on_stream ? Origin::pinned : Origin::pageable), forward(11),
                        holding(window));
        const sh_stream stream = on_stream ? model.stream() : SH_STREAM_HOST;
        for (int k = 0; k < 4; k++) {
            model.begin_step();
            for (size_t i = 0; i < 11 + window - 1; i++) {
                if (i < 11) {
                    sh_view view = model.acquire(i, stream);
                    SUCCEEDS(model.compare(i, view, stream));
                }
                if (i + 1 < window) continue;
                // Blocks that stayed held are still there.
                const size_t last = i + 1 - window;
                sh_view again = model.acquire(last, stream);
                SUCCEEDS(model.compare(last, again, stream));
                model.release(last, stream);
                model.release(last, stream);
            }
            model.end_step();
        }
        model.synchronize();
    }
}

// Uses the smallest budget for the window. The number of blocks makes the ring meet itself at the edge of a step.
TEST_P(Held, smallest_budget_of_a_window) {
    const uint32_t window = GetParam();
    SoloModel model({.budget_bytes = window * 5 * kPage}, equal_blocks(12, 5 * kPage, Origin::pageable), forward(12),
                    holding(window));
    EXPECT_EQ(model.plan().smallest_budget_bytes, window * 5 * kPage);
    for (int k = 0; k < 3; k++) {
        model.begin_step();
        for (size_t i = 0; i < 12 + window - 1; i++) {
            if (i >= window) model.release(i - window);
            if (i >= 12) continue;
            sh_view view = model.acquire(i);
            SUCCEEDS(model.compare(i, view, SH_STREAM_HOST));
        }
        model.release(11);
        model.end_step();
    }
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
        sh_segment segment = fill_segment(fill, this, 2 * kPage);
        const sh_block id = register_block(runtime, segment, SH_BLOCK_UNORDERED);
        return id;
    }
};

// A release without a view of its own would otherwise end the view that another call is about to give, and a failing
// acquire would end it once more.
TEST(Holding, no_release_ends_what_an_acquire_under_way_holds) {
    for (const bool fails : {false, true}) {
        SoloModel model({.budget_bytes = 16 * kPage}, equal_blocks(2, 2 * kPage));
        SlowSource source;
        source.fails = fails;
        const sh_block block = source.add_to(model.runtime());
        sh_status acquired = SH_OK;
        std::jthread engine([&] {
            auto view = sh_sized<sh_view>();
            acquired = sh_acquire(model.runtime(), block, SH_STREAM_HOST, 0, &view);
        });
        while (!source.asked) std::this_thread::yield();
        EXPECT_EQ(sh_release(model.runtime(), block, SH_STREAM_HOST), SH_ERROR_INVALID_STATE);
        source.let_go = true;
        engine.join();
        EXPECT_EQ(acquired, fails ? SH_ERROR_CALLBACK : SH_OK);
        EXPECT_EQ(sh_release(model.runtime(), block, SH_STREAM_HOST), fails ? SH_ERROR_INVALID_STATE : SH_OK);
        auto state = sh_sized<sh_block_state>();
        SUCCEEDS(sh_block_get_state(model.runtime(), block, &state));
        EXPECT_EQ(state.held, 0u);
        SUCCEEDS(model.use(0));
    }
}

TEST(Holding, too_many_names_the_holder) {
    std::vector<BlockSpec> specs = equal_blocks(5, 6 * kPage);
    for (size_t i = 0; i < specs.size(); i++) specs[i].name = "layer." + std::to_string(i);
    SoloModel model({.budget_bytes = 6 * kPage}, specs, forward(5));
    model.begin_step();
    auto view = sh_sized<sh_view>(), other = sh_sized<sh_view>();
    view = model.acquire(0);
    EXPECT_REFUSED(sh_acquire(model.runtime(), model.id(1), SH_STREAM_HOST, 0, &other), SH_ERROR_HELD, "layer.0");
    EXPECT_NE(why().find("layer.1"), std::string::npos) << why();
    EXPECT_NE(why().find("max_held"), std::string::npos) << why();
    // The failed acquire has changed nothing.
    EXPECT_EQ(model.state(0).held, 1u);
    EXPECT_EQ(model.state(1).held, 0u);
    SUCCEEDS(model.compare(0, view, SH_STREAM_HOST));
    model.release(0);
    SUCCEEDS(model.use(1));
    model.end_step();
}

// No block is outside the order while the order is unknown. The text should therefore advise to set max_held.
TEST(Holding, too_many_while_the_order_is_learned_names_max_held) {
    std::vector<BlockSpec> specs = equal_blocks(6, 4 * kPage);
    for (size_t i = 0; i < specs.size(); i++) specs[i].name = "layer." + std::to_string(i);
    SoloModel model({.budget_bytes = 8 * kPage}, specs);
    model.begin_step();
    auto view = sh_sized<sh_view>();
    for (size_t i = 0; i < 2; i++) view = model.acquire(i);
    EXPECT_EQ(sh_acquire(model.runtime(), model.id(2), SH_STREAM_HOST, 0, &view), SH_ERROR_HELD);
    for (const char* const part : {"layer.0\" and others", "being learned", "max_held", "schedule"})
        EXPECT_NE(why().find(part), std::string::npos) << part << ": " << why();
    EXPECT_EQ(why().find("unordered_bytes"), std::string::npos) << why();
    for (size_t i = 0; i < 2; i++) model.release(i);
    model.end_step();
    // A runtime that follows the advice is refused before it begins, and the text says why.
    Model three(model.test_device(), equal_blocks(6, 4 * kPage), holding(3));
    EXPECT_REFUSED(three.use(0), SH_ERROR_BUDGET, "max_held, 3,");
    model.destroy();
    three.destroy();
    SUCCEEDS(sh_device_set_budget(model.device(), 12 * kPage));
    Model fits(model.test_device(), equal_blocks(6, 4 * kPage), holding(3));
    fits.begin_step();
    for (size_t i = 0; i < 3; i++) view = fits.acquire(i);
    for (size_t i = 0; i < 3; i++) fits.release(i);
    fits.end_step();
}

// Blocks outside the order need more memory of their own instead.
TEST(Holding, too_many_outside_the_order_names_their_memory) {
    for (const bool ordered_too : {false, true}) {
        std::vector<BlockSpec> specs = equal_blocks(4, 4 * kPage, Origin::pinned, SH_BLOCK_UNORDERED);
        for (int k = 0; ordered_too && k < 4; k++) specs.push_back({4 * kPage});
        SoloModel model({.budget_bytes = 12 * kPage}, specs, {}, {.unordered_bytes = 4 * kPage});
        if (ordered_too) {
            SUCCEEDS(model.schedule({4, 5, 6, 7}));
        }
        auto view = sh_sized<sh_view>();
        size_t held = 0;
        sh_status status = SH_OK;
        while (held < 4 && (status = sh_acquire(model.runtime(), model.id(held), SH_STREAM_HOST, 0, &view)) == SH_OK)
            held++;
        EXPECT_REFUSED(status, SH_ERROR_HELD, "larger unordered_bytes");
        EXPECT_EQ(why().find("max_held"), std::string::npos) << why();
        EXPECT_EQ(why().find(" and others") != std::string::npos, held > 1) << why();
        for (size_t i = 0; i < held; i++) model.release(i);
    }
}

TEST(Holding, a_view_held_over_the_steps_end_stays) {
    SoloModel model({.budget_bytes = 18 * kPage}, equal_blocks(8, 6 * kPage, Origin::pageable), forward(8), holding(2));
    SUCCEEDS(model.step(forward(8)));
    sh_view view = model.acquire(3);
    for (int k = 0; k < 3; k++) {
        model.begin_step();
        for (size_t i = 0; i < 8; i++) {
            const sh_status status = model.use(i);
            EXPECT_TRUE(status == SH_OK || status == SH_ERROR_HELD) << why();  // the view may block some loads
        }
        SUCCEEDS(model.compare(3, view, SH_STREAM_HOST));
        model.end_step();
    }
    model.release(3);
    for (int k = 0; k < 3; k++) SUCCEEDS(model.step(forward(8)));
}

TEST(Holding, acquire_many_is_all_or_none) {
    SoloModel model({.budget_bytes = 12 * kPage}, equal_blocks(6, 4 * kPage, Origin::pageable), forward(6), holding(3));
    const sh_block three[] = {model.id(0), model.id(1), model.id(2)},
                   four[] = {model.id(0), model.id(1), model.id(2), model.id(3)};
    sh_view views[4] = {sh_sized<sh_view>(), sh_sized<sh_view>(), sh_sized<sh_view>(), sh_sized<sh_view>()};
    model.begin_step();
    SUCCEEDS(sh_acquire_many(model.runtime(), three, 3, SH_STREAM_HOST, 0, views));
    for (size_t i = 0; i < 3; i++) SUCCEEDS(model.compare(i, views[i], SH_STREAM_HOST));
    for (const sh_block block : three) let_go(model.runtime(), block);
    EXPECT_EQ(sh_acquire_many(model.runtime(), four, 4, SH_STREAM_HOST, 0, views), SH_ERROR_HELD) << why();
    for (size_t i = 0; i < 6; i++) EXPECT_EQ(model.state(i).held, 0u) << i;
    const sh_block twice[] = {model.id(4), model.id(5), model.id(4)};
    SUCCEEDS(sh_acquire_many(model.runtime(), twice, 3, SH_STREAM_HOST, 0, views));
    EXPECT_EQ(model.state(4).held, 2u);
    EXPECT_EQ(views[0].address, views[2].address);
    for (const sh_block block : twice) let_go(model.runtime(), block);
    EXPECT_EQ(model.state(4).held, 0u);
    model.end_step();
}

// The plan for the second kind leaves two blocks out, which the first kind holds together. They have places in the ring
// if the engine tells the kinds by name, and else memory beside it.
TEST(Holding, a_kind_holds_as_many_blocks_that_another_kind_leaves_out) {
    for (const bool named : {true, false}) {
        SoloModel model({.budget_bytes = (named ? 12 : 16) * kPage}, equal_blocks(8, 4 * kPage), {}, holding(2));
        const auto pairs = [&] {
            SUCCEEDS(sh_step_begin(model.runtime(), named ? "pairs" : nullptr));
            for (size_t i = 0; i < 8; i += 2) {
                sh_view views[2] = {sh_sized<sh_view>(), sh_sized<sh_view>()};
                SUCCEEDS(sh_acquire_many(model.runtime(), &model.ids()[i], 2, SH_STREAM_HOST, 0, views));
                for (const size_t k : {0, 1}) SUCCEEDS(model.compare(i + k, views[k], SH_STREAM_HOST));
                for (const size_t k : {0, 1}) model.release(i + k);
            }
            model.end_step();
        };
        pairs();
        for (int again = 0; again < 2; again++) {
            SUCCEEDS(sh_step_begin(model.runtime(), named ? "one by one" : nullptr));
            for (size_t i = 2; i < 8; i++) SUCCEEDS(model.use(i, SH_STREAM_HOST));
            model.end_step();
        }
        for (int k = 0; k < 3; k++) pairs();
    }
}

// Steps of two kinds: one holds four blocks at a time, the other holds one, backwards and not all of them.
TEST(Holding, kinds_in_turn_hold_as_many_blocks_as_each_alone) {
    SoloModel model({.budget_bytes = 28 * kPage}, equal_blocks(8, 4 * kPage), {}, holding(4));
    for (int turn = 0; turn < 4; turn++) {
        SUCCEEDS(sh_step_begin(model.runtime(), "by fours"));
        for (size_t first = 0; first < 8; first += 4) {
            sh_view views[4] = {sh_sized<sh_view>(), sh_sized<sh_view>(), sh_sized<sh_view>(), sh_sized<sh_view>()};
            SUCCEEDS(sh_acquire_many(model.runtime(), &model.ids()[first], 4, SH_STREAM_HOST, 0, views));
            for (size_t k = 0; k < 4; k++) SUCCEEDS(model.compare(first + k, views[k], SH_STREAM_HOST));
            for (size_t k = 0; k < 4; k++) model.release(first + k);
        }
        model.end_step();
        for (int again = 0; again < 2; again++) {
            SUCCEEDS(sh_step_begin(model.runtime(), "one by one"));
            for (const size_t i : {7, 5, 4, 2, 1}) SUCCEEDS(model.use(i, SH_STREAM_HOST));
            model.end_step();
        }
    }
}

TEST(Holding, no_wait_gives_not_ready_and_holds_nothing) {
    DeviceSettings slow{.budget_bytes = 12 * kPage};
    slow.options += ";latency=3ms";
    for (const Origin origin : {Origin::pinned, Origin::pageable}) {
        SoloModel model(slow, equal_blocks(6, 6 * kPage, origin), forward(6));
        int not_ready = 0;
        for (int k = 0; k < 2; k++) {
            model.begin_step();
            for (size_t i = 0; i < 6; i++) {
                sh_status status;
                while ((status = model.use(i, SH_STREAM_HOST, SH_ACQUIRE_NO_WAIT)) == SH_NOT_READY) {
                    EXPECT_EQ(model.state(i).held, 0u);
                    not_ready++;
                }
                SUCCEEDS(status);
            }
            model.end_step();
        }
        if (on_host_backend()) {  // other devices have a fixed speed
            EXPECT_GT(not_ready, 0);
        }
        EXPECT_EQ(model.stats().host_waits, 0u);
    }
}

// Pinned sources need no wait on the host if a stream can wait.
TEST(Holding, no_wait_on_a_stream_with_pinned_sources_is_always_ready) {
    DeviceSettings slow{.budget_bytes = 12 * kPage};
    slow.options += ";latency=2ms";
    SoloModel model(slow, equal_blocks(6, 6 * kPage), forward(6));
    const sh_stream stream = model.stream();
    model.begin_step();
    for (size_t i = 0; i < 6; i++) SUCCEEDS(model.use(i, stream, SH_ACQUIRE_NO_WAIT));
    model.end_step();
    model.synchronize();
    EXPECT_EQ(model.stats().host_waits, 0u);
}

}  // namespace
}  // namespace stagehand::test
