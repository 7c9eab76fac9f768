#include "policy/restore_order.h"

#include <vector>

#include <gtest/gtest.h>

namespace stagehand::policy {
namespace {

using Visited = RestoreOrder::Visited;

std::vector<uint32_t> next(RestoreOrder& order, size_t count = SIZE_MAX) {
    std::vector<uint32_t> numbers;
    order.for_each_next([&](uint32_t number) {
        numbers.push_back(number);
        return numbers.size() < count ? Visited::again : Visited::stop;
    });
    return numbers;
}

void save(RestoreOrder& order, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) EXPECT_EQ(order.save(), i);
}

using Numbers = std::vector<uint32_t>;

TEST(RestoreOrder, IsTheReverseOfSavingAtFirst) {
    RestoreOrder order;
    save(order, 4);
    EXPECT_EQ(next(order), (Numbers{3, 2, 1, 0}));
    order.restore(3);
    order.restore(1);
    EXPECT_EQ(next(order), (Numbers{0})) << "a tensor that was passed over belongs to a branch that is not taken";
    EXPECT_EQ(next(order, 1), (Numbers{0}));
}

TEST(RestoreOrder, IsThatOfTheLastStep) {
    RestoreOrder order;
    save(order, 4);
    for (const uint32_t number : {2u, 3u, 3u, 0u, 1u}) order.restore(number);
    order.end_step();
    save(order, 4);
    EXPECT_EQ(next(order), (Numbers{2, 3, 0, 1}));
    order.restore(2);
    EXPECT_EQ(next(order), (Numbers{3, 0, 1}));
    order.restore(0);
    EXPECT_EQ(next(order), (Numbers{1})) << "the backward has jumped";
}

TEST(RestoreOrder, KnowsTheTimesOfTheLastStep) {
    RestoreOrder order;
    save(order, 3);
    order.restore(2, 5);
    order.restore(0, 7);
    order.restore(2, 9);
    EXPECT_EQ(order.time_of(2), 0u) << "no step has ended";
    order.end_step();
    save(order, 4);
    EXPECT_EQ(order.time_of(2), 5u);
    EXPECT_EQ(order.time_of(0), 7u);
    EXPECT_EQ(order.time_of(1), 0u);
    EXPECT_EQ(order.time_of(3), 0u);
    order.end_step();
    EXPECT_EQ(order.time_of(0), 7u) << "a step without restores changes nothing";
}

TEST(RestoreOrder, ChangesWithTheSteps) {
    RestoreOrder order;
    save(order, 3);
    for (const uint32_t number : {0u, 1u, 2u}) order.restore(number);
    order.end_step();
    save(order, 5);
    EXPECT_EQ(next(order), (Numbers{0, 1, 2, 4, 3})) << "what the last step did not have comes after it, newest first";
    for (const uint32_t number : {4u, 3u}) order.restore(number);
    order.end_step();
    save(order, 5);
    EXPECT_EQ(next(order), (Numbers{4, 3, 2, 1, 0}));
    order.end_step();  // nothing was restored
    save(order, 2);
    EXPECT_EQ(next(order), (Numbers{1, 0})) << "a shorter step has no tensors 3 and 4";
    order.restore(7);
    EXPECT_EQ(next(order), (Numbers{1, 0})) << "a number that was not saved is ignored";
}

// What is done is not visited again until it may have changed.
TEST(RestoreOrder, WalksOnceOverWhatIsDone) {
    for (const bool repeated : {false, true}) {
        RestoreOrder order;
        save(order, 6);
        if (repeated) {
            for (const uint32_t number : {5u, 4u, 3u, 2u, 1u, 0u}) order.restore(number);
            order.end_step();
            save(order, 6);
        }
        Numbers visited;
        const auto walk = [&](uint32_t not_done) {
            visited.clear();
            order.for_each_next([&](uint32_t number) {
                visited.push_back(number);
                return number == not_done ? Visited::again : Visited::done;
            });
            return visited;
        };
        EXPECT_EQ(walk(3), (Numbers{5, 4, 3, 2, 1, 0}));
        EXPECT_EQ(walk(3), (Numbers{3, 2, 1, 0})) << "those after the first that is not done are visited again";
        EXPECT_EQ(walk(6), (Numbers{3, 2, 1, 0}));
        EXPECT_EQ(walk(6), Numbers());
        order.visit_all_again();
        EXPECT_EQ(walk(6), (Numbers{5, 4, 3, 2, 1, 0}));
        EXPECT_EQ(order.save(), 6u);
        EXPECT_EQ(walk(6), (repeated ? Numbers{6} : Numbers{6, 5, 4, 3, 2, 1, 0})) << "a new one is visited";
    }
}

}  // namespace
}  // namespace stagehand::policy
