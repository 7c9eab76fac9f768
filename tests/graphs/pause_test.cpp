// Captured steps and pauses: a graph is launched again after a resume, without a new capture.
#include "captured_step.h"
#include "device_under_test.h"

namespace stagehand::test {
namespace {

class GraphPauses : public Graphs {
protected:
    void SetUp() override {
        Graphs::SetUp();
        if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    }
};

TEST_F(GraphPauses, graphs_are_launched_after_a_resume) {
    for (const uint64_t budget : {64, 24}) {  // all blocks are resident, or most of them stream
        SoloModel model(settings(budget), equal_blocks(12, kBlock, Origin::pinned), forward(12));
        Step step(model, forward(12));
        const sh_stream stream = step.stream();
        SUCCEEDS(step.launch());
        const uint64_t held = model.stats().held_bytes;
        for (int cycle = 0; cycle < 3; cycle++) {
            SUCCEEDS(sh_pause(model.device(), nullptr, nullptr));
            EXPECT_EQ(model.memory().used_bytes, 0u);
            EXPECT_REFUSED(sh_graph_enter(step.graph(), stream), SH_ERROR_INVALID_STATE, "sh_resume()");
            SUCCEEDS(sh_resume(model.device(), nullptr, nullptr));
            EXPECT_EQ(model.stats().held_bytes, held);
            for (int k = 0; k < 2; k++) SUCCEEDS(step.launch());
            SUCCEEDS(model.step(forward(12), stream));
        }
        model.synchronize();
        EXPECT_EQ(step.compared(), 7 * 12u);
    }
}

TEST_F(GraphPauses, a_capture_is_refused_while_its_runtime_is_released) {
    SoloModel model(settings(64), equal_blocks(6, kBlock, Origin::pinned), forward(6));
    model.plan();
    const sh_stream stream = model.stream();
    SUCCEEDS(sh_pause(model.device(), nullptr, nullptr));
    ASSERT_EQ(DRIVER(sh_test_capture_begin)(stream), SH_OK);
    EXPECT_REFUSED(sh_capture_begin(model.runtime(), stream), SH_ERROR_INVALID_STATE, "sh_resume()");
    sh_test_graph* native = nullptr;
    EXPECT_EQ(DRIVER(sh_test_capture_end)(stream, &native), SH_OK);
    if (native) DRIVER(sh_test_graph_destroy)(native);
    SUCCEEDS(sh_resume(model.device(), nullptr, nullptr));
    SUCCEEDS(model.step(forward(6), stream));
}

TEST_F(GraphPauses, a_capture_and_an_entered_graph_refuse_a_pause) {
    SoloModel model(settings(64), equal_blocks(6, kBlock, Origin::pinned), forward(6));
    model.plan();
    const sh_stream stream = model.stream();
    Step step(model);
    SUCCEEDS(step.begin(stream));
    EXPECT_LT(sh_pause(model.device(), nullptr, nullptr), 0);
    for (size_t i = 0; i < 6; i++) SUCCEEDS(step.use(i));
    SUCCEEDS(step.end());
    SUCCEEDS(sh_graph_enter(step.graph(), stream));
    EXPECT_REFUSED(sh_pause(model.device(), nullptr, nullptr), SH_ERROR_INVALID_STATE, "graph");
    SUCCEEDS(sh_graph_leave(step.graph(), stream));
    SUCCEEDS(sh_pause(model.device(), nullptr, nullptr));
    SUCCEEDS(sh_resume(model.device(), nullptr, nullptr));
    SUCCEEDS(step.launch(stream));
}

}  // namespace
}  // namespace stagehand::test
