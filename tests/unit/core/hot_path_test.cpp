// The hot path of pinned sources: nothing is allocated, and nothing waits on the host, after the first steps.
#include <algorithm>

#include "../count_allocations.h"
#include "engine.h"

namespace stagehand::test {
namespace {

class HotPath : public testing::TestWithParam<uint64_t> {};

TEST_P(HotPath, allocates_nothing_and_waits_for_nothing) {
    TestDevice device({.budget_bytes = GetParam() * kPage});
    sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
    options.max_held = 2;
    Model model(device, unequal_blocks(30, Origin::pinned), options);
    SUCCEEDS(model.schedule(forward_backward(30)));
    const sh_stream stream = device.stream();
    const std::vector<size_t> order = forward_backward(30);
    const auto step = [&] {
        sh_view view = SH_VIEW_INIT;
        SUCCEEDS(sh_step_begin(model.runtime(), nullptr));
        sh_view pair[2] = {SH_VIEW_INIT, SH_VIEW_INIT};
        const sh_block first_two[2] = {model.id(order[0]), model.id(order[1])};
        SUCCEEDS(sh_acquire_many(model.runtime(), first_two, 2, stream, 0, pair));
        for (const sh_block block : first_two) SUCCEEDS(sh_release(model.runtime(), block, stream));
        for (size_t k = 2; k < order.size(); k++) {
            const size_t i = order[k];
            SUCCEEDS(sh_acquire(model.runtime(), model.id(i), stream, 0, &view));
            SUCCEEDS(sh_stream_launch(device.get(), stream, nullptr, nullptr, 2000));
            SUCCEEDS(sh_release(model.runtime(), model.id(i), stream));
        }
        SUCCEEDS(sh_step_end(model.runtime()));
        SUCCEEDS(sh_stream_synchronize(device.get(), stream));  // so each step queues the same number of commands
    };
    for (int k = 0; k < 30; k++) step();  // lists grow to their size
    device.synchronize();
    const uint64_t waits = model.stats().host_waits;
    // Queues of the backend may still grow when its threads were delayed. An allocation of every step would appear in
    // every window.
    uint64_t least = UINT64_MAX;
    for (int window = 0; window < 20 && least; window++) {
        allocations = 0;
        count_allocations = true;
        for (int k = 0; k < 10; k++) step();
        device.synchronize();
        count_allocations = false;
        least = std::min(least, allocations.load());
    }
    EXPECT_EQ(least, 0u);
    EXPECT_EQ(model.stats().host_waits, waits);
    EXPECT_EQ(waits, 0u);
    SUCCEEDS(model.step(order, stream));
    device.synchronize();
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

INSTANTIATE_TEST_SUITE_P(Budgets, HotPath, testing::Values(12u, 40u, 200u));

}  // namespace
}  // namespace stagehand::test
