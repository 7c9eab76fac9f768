#include "transfer/staging/deadline_queue.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace stagehand::transfer {
namespace {

struct Item : Deadline {};

TEST(DeadlineQueue, GivesEarliestFirstAndEqualsInOrderOfArrival) {
    std::vector<Item> items(6);
    const uint64_t deadlines[] = {5, 3, 5, 0, 3, 9};
    DeadlineQueue<Item> queue;
    for (size_t i = 0; i < items.size(); i++) {
        items[i].deadline_ns = deadlines[i];
        items[i].sequence = i;
        queue.push(items[i]);
    }
    std::vector<size_t> order;
    while (!queue.empty()) {
        order.push_back(static_cast<size_t>(queue.front() - items.data()));
        queue.remove(*queue.front());
    }
    EXPECT_EQ(order, (std::vector<size_t>{3, 1, 4, 0, 2, 5}));
}

TEST(DeadlineQueue, AgreesWithASortedListUnderRandomOperations) {
    std::mt19937 random(7);
    std::vector<Item> items(200);
    std::vector<Item*> expected;
    DeadlineQueue<Item> queue;
    uint64_t sequence = 0;
    for (int step = 0; step < 20000; step++) {
        Item& item = items[random() % items.size()];
        if (!queue.contains(item)) {
            item.deadline_ns = random() % 50;
            item.sequence = sequence++;
            queue.push(item);
            expected.push_back(&item);
        } else if (random() % 2) {
            queue.remove(item);
            expected.erase(std::find(expected.begin(), expected.end(), &item));
        } else {
            item.deadline_ns = random() % 50;
            queue.moved(item);
        }
        ASSERT_EQ(queue.size(), expected.size());
        if (expected.empty()) continue;
        Item* const first = *std::min_element(expected.begin(), expected.end(), [](const Item* a, const Item* b) {
            return std::pair(a->deadline_ns, a->sequence) < std::pair(b->deadline_ns, b->sequence);
        });
        ASSERT_EQ(queue.front(), first) << "step " << step;
    }
}

}  // namespace
}  // namespace stagehand::transfer
