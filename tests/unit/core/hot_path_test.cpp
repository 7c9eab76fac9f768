// The hot path of pinned sources: nothing is allocated, and nothing waits on the host, after the first steps.
#include <algorithm>

#include "../count_allocations.h"
#include "engine.h"

namespace stagehand::test {
namespace {

class HotPath : public testing::TestWithParam<uint64_t> {};

TEST_P(HotPath, allocates_nothing_and_waits_for_nothing) {
    SoloModel model({.budget_bytes = GetParam() * kPage}, unequal_blocks(30, Origin::pinned), forward_backward(30),
                    {.max_held = 2});
    const sh_stream stream = model.stream();
    const std::vector<size_t> order = forward_backward(30);
    const auto step = [&] {
        auto view = sh_sized<sh_view>();
        model.begin_step();
        sh_view pair[2] = {sh_sized<sh_view>(), sh_sized<sh_view>()};
        const sh_block first_two[2] = {model.id(order[0]), model.id(order[1])};
        SUCCEEDS(sh_acquire_many(model.runtime(), first_two, 2, stream, 0, pair));
        for (const sh_block block : first_two) let_go(model.runtime(), block, stream);
        for (size_t k = 2; k < order.size(); k++) {
            const size_t i = order[k];
            view = model.acquire(i, stream);
            SUCCEEDS(sh_stream_launch(model.device(), stream, nullptr, nullptr, 2000));
            model.release(i, stream);
        }
        model.end_step();
        SUCCEEDS(sh_stream_synchronize(model.device(), stream));  // so each step queues the same number of commands
    };
    for (int k = 0; k < 30; k++) step();  // lists grow to their size
    model.synchronize();
    const uint64_t waits = model.stats().host_waits;
    // Queues of the backend may still grow when its threads were delayed. An allocation of every step would appear in
    // every window.
    uint64_t least = UINT64_MAX;
    for (int window = 0; window < 20 && least; window++) {
        allocations = 0;
        count_allocations = true;
        for (int k = 0; k < 10; k++) step();
        model.synchronize();
        count_allocations = false;
        least = std::min(least, allocations.load());
    }
    EXPECT_EQ(least, 0u);
    EXPECT_EQ(model.stats().host_waits, waits);
    EXPECT_EQ(waits, 0u);
    SUCCEEDS(model.step(order, stream));
}

INSTANTIATE_TEST_SUITE_P(Budgets, HotPath, testing::Values(12u, 40u, 200u));

}  // namespace
}  // namespace stagehand::test
