// Code that the tests of captured steps share: a step that was captured on the capture backend and compares the bytes
// itself.
#pragma once

#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>

#include "access_order.h"
#include "capture.h"
#include "engine.h"
#include "plugin.h"

namespace stagehand::test {

const uint64_t kBlock = 4 * kPage;

// A captured step: the engine's graph and the library's graph. Blocks has runtime() and test_device(), and id() and
// truth() of each block. Launches that found wrong bytes fail the test at the end.
template <class Blocks>
class StepOf {
public:
    explicit StepOf(Blocks& model) : device_(model.test_device()), model_(model) {}
    StepOf(Blocks& model, sh_stream stream, const std::vector<size_t>& order) : StepOf(model) {
        capture(stream, order);
    }
    // Of a new plan, on a stream of its own.
    StepOf(Blocks& model, const std::vector<size_t>& order) : StepOf(model) {
        EXPECT_SUCCEEDS(sh_plan(model.runtime(), nullptr, nullptr));
        capture(device_.stream(), order);
    }
    ~StepOf() {
        sh_graph_destroy(graph_);
        if (native_) DRIVER(sh_test_graph_destroy)(native_);
        EXPECT_EQ(wrong_, 0u);
    }
    StepOf(const StepOf&) = delete;

    sh_status begin(sh_stream stream) {
        stream_ = stream;
        EXPECT_EQ(DRIVER(sh_test_capture_begin)(stream), SH_OK);
        return sh_capture_begin(model_.runtime(), stream);
    }
    // Compares the bytes after the stream was busy for `late_ns`.
    sh_status use(size_t i, sh_stream stream = 0, int64_t late_ns = 0) {
        if (!stream) stream = stream_;
        auto view = sh_sized<sh_view>();
        const sh_status status = sh_acquire(model_.runtime(), model_.id(i), stream, 0, &view);
        if (status != SH_OK) return status;
        auto state = sh_sized<sh_block_state>();
        EXPECT_SUCCEEDS(sh_block_get_state(model_.runtime(), model_.id(i), &state));
        checks_.push_back(
            {this, i, static_cast<const uint8_t*>(view.address), model_.truth(i)->size(), state.resident_bytes});
        if (late_ns) {
            EXPECT_SUCCEEDS(sh_stream_launch(device_.get(), stream, nullptr, nullptr, late_ns));
        }
        EXPECT_SUCCEEDS(sh_stream_launch(device_.get(), stream, compare, &checks_.back(), 20'000));
        return sh_release(model_.runtime(), model_.id(i), stream);
    }
    sh_status end() {
        const sh_status status = sh_capture_end(model_.runtime(), stream_, &graph_);
        const sh_status native = DRIVER(sh_test_capture_end)(stream_, &native_);
        if (status != SH_OK) return status;
        EXPECT_EQ(native, SH_OK) << DRIVER(sh_test_capture_error)();
        return native;
    }
    // Ends the engine's capture after a failure of begin().
    void give_up() { (void)DRIVER(sh_test_capture_end)(stream_, &native_); }
    void capture(sh_stream stream, const std::vector<size_t>& order) {
        ASSERT_EQ(begin(stream), SH_OK) << why();
        for (const size_t i : order) ASSERT_EQ(use(i), SH_OK) << why();
        ASSERT_EQ(end(), SH_OK) << why();
    }
    sh_status launch() { return launch(stream_); }
    sh_status launch(sh_stream stream) {
        const sh_status entered = enter(stream);
        return entered == SH_OK ? launch_entered(stream) : entered;
    }
    sh_status enter(sh_stream stream) { return sh_graph_enter(graph_, stream); }
    sh_status launch_entered(sh_stream stream) {
        EXPECT_EQ(DRIVER(sh_test_graph_launch)(native_, stream), SH_OK);
        for (const Check& check : checks_) {  // each use, after the copy of what the plan does not keep
            const uint64_t kept = std::min(check.kept_bytes, check.bytes);
            note_access(device_.get(), stream, check.at, kept, false);
            note_access(device_.get(), stream, check.at + kept, check.bytes - kept, true);
        }
        return sh_graph_leave(graph_, stream);
    }
    sh_graph* graph() const { return graph_; }
    sh_graph* take() { return std::exchange(graph_, nullptr); }
    uint64_t compared() const { return compared_; }
    sh_stream stream() const { return stream_; }
    uint64_t copies() const {
        uint64_t commands = 0, copies = 0;
        DRIVER(sh_test_graph_count)(native_, &commands, &copies);
        return copies;
    }

private:
    struct Check {
        StepOf* step;
        size_t block;
        const uint8_t* at;
        uint64_t bytes, kept_bytes;
    };
    static void compare(void* data) {
        const Check& check = *static_cast<Check*>(data);
        const auto truth = check.step->model_.truth(check.block);
        check.step->compared_++;
        if (std::memcmp(check.at, truth->data(), truth->size()) != 0) check.step->wrong_++;
    }

    TestDevice& device_;
    Blocks& model_;
    sh_stream stream_ = 0;
    sh_graph* graph_ = nullptr;
    sh_test_graph* native_ = nullptr;
    std::deque<Check> checks_;
    std::atomic<uint64_t> compared_{0}, wrong_{0};
};
using Step = StepOf<Model>;

inline DeviceSettings settings(uint64_t pages, const std::string& more = "") {
    DeviceSettings settings;
    settings.name = "capture";
    settings.options += more;
    settings.budget_bytes = pages * kPage;
    return settings;
}

class Graphs : public testing::Test {
protected:
    void SetUp() override {
        if (!std::getenv("STAGEHAND_BACKEND_PATH"))
            GTEST_SKIP() << "STAGEHAND_BACKEND_PATH does not lead to the capture backend";
    }
};

}  // namespace stagehand::test
