// Order: positions, uses in a row, learning, and the order that is set aside.
#include <gtest/gtest.h>

#include "core/plan/order.h"
#include "core/plan/order_record.h"

namespace stagehand::core {
namespace {

std::vector<Order::Entry> entries_of(std::initializer_list<uint32_t> units) {
    std::vector<Order::Entry> entries;
    for (const uint32_t unit : units) entries.push_back({unit, 100, 1});
    return entries;
}

std::vector<uint32_t> units_of(const std::vector<Order::Entry>& entries) {
    std::vector<uint32_t> units;
    for (const Order::Entry& entry : entries) units.push_back(entry.unit);
    return units;
}

TEST(OrderOfUses, finds_the_next_use_in_this_lap_and_the_next) {
    Order order;
    EXPECT_FALSE(order.known());
    order.set(entries_of({0, 1, 0, 3}), 5, true);
    EXPECT_TRUE(order.known() && order.given());
    EXPECT_EQ(order.followed().next_use(0, 0), 0u);
    EXPECT_EQ(order.followed().next_use(0, 1), 2u);
    EXPECT_EQ(order.followed().next_use(0, 3), 4u);
    EXPECT_EQ(order.followed().next_use(1, 10), 13u);
    EXPECT_EQ(order.followed().next_use(2, 0), UINT64_MAX);
    EXPECT_FALSE(order.contains(2));
}

TEST(OrderOfUses, follows_the_engine) {
    Order order;
    order.set({{0, 100, 2}, {1, 100, 1}, {2, 100, 1}}, 4, true);
    EXPECT_TRUE(order.arrive(0));
    EXPECT_EQ(order.position().cursor(), 0u);  // a second use is to come
    EXPECT_TRUE(order.arrive(0));
    EXPECT_EQ(order.position().cursor(), 1u);
    EXPECT_TRUE(order.arrive(0));  // used once more than expected
    EXPECT_EQ(order.position().cursor(), 1u);
    EXPECT_FALSE(order.position().deviated());
    EXPECT_TRUE(order.arrive(2));
    EXPECT_TRUE(order.position().deviated());
    EXPECT_EQ(order.position().cursor(), 3u);
    EXPECT_FALSE(order.arrive(3));  // not in the order
    EXPECT_EQ(order.position().cursor(), 3u);
    EXPECT_TRUE(order.arrive(0));
    order.to_edge();  // the engine is at the edge already
    EXPECT_FALSE(order.position().deviated());
    EXPECT_EQ(order.position().cursor(), 3u);
    for (int use = 0; use < 2; use++) EXPECT_TRUE(order.arrive(0));
    order.to_edge();
    EXPECT_EQ(order.position().cursor(), 6u);
}

TEST(OrderOfUses, tells_how_long_the_engine_computes) {
    Order order;
    order.set({{0, 100, 1}, {1, 20, 1}, {2, 3, 1}}, 3, true);
    EXPECT_EQ(order.compute_until(0), 0u);
    EXPECT_EQ(order.compute_until(2), 120u);
    EXPECT_TRUE(order.arrive(0));
    EXPECT_TRUE(order.arrive(1));
    EXPECT_EQ(order.compute_until(2), 0u);
    EXPECT_EQ(order.compute_until(3), 3u);
    EXPECT_EQ(order.compute_until(4), 103u);
    EXPECT_EQ(order.compute_until(8), 126u + 120u);
}

TEST(OrderOfUses, is_unknown_after_it_was_cleared) {
    Order order;
    order.set(entries_of({0, 1}), 2, true);
    EXPECT_TRUE(order.arrive(0));
    order.clear();
    EXPECT_FALSE(order.known());
    EXPECT_FALSE(order.given());
    EXPECT_FALSE(order.is_aside());
    EXPECT_FALSE(order.contains(0));
    EXPECT_EQ(order.followed().size(), 0u);
    EXPECT_EQ(order.position().cursor(), 0u);
    EXPECT_FALSE(order.arrive(0));
    order.to_edge();
}

TEST(OrderOfUses, is_taken_up_after_it_was_set_aside) {
    Order order;
    EXPECT_FALSE(order.take_up(2));
    order.set(entries_of({1, 0}), 2, false);
    order.set_aside();
    EXPECT_FALSE(order.known());
    EXPECT_TRUE(order.is_aside());
    EXPECT_TRUE(order.take_up(2));
    EXPECT_FALSE(order.is_aside());
    EXPECT_EQ(units_of(order.followed().entries()), (std::vector<uint32_t>{1, 0}));
    EXPECT_EQ(order.followed().next_use(0, 0), 1u);
    order.set_aside();
    order.clear();
    EXPECT_FALSE(order.take_up(2));
}

TEST(OrderOfUses, follows_one_of_several_orders) {
    Order order;
    order.set(entries_of({0, 1, 2}), 4, false, 1);
    EXPECT_TRUE(order.arrive(0));
    order.add(entries_of({0, 3}), 4, 2);
    EXPECT_EQ(units_of(order.followed().entries()), (std::vector<uint32_t>{0, 3}));
    EXPECT_EQ(order.position().cursor(), 0u);
    EXPECT_TRUE(order.contains(1)) << "of any order";
    EXPECT_EQ(order.followed().next_use(1, 0), UINT64_MAX) << "of the order that is followed";
    EXPECT_TRUE(order.contains(0) && order.contains(2) && order.contains(3));
    EXPECT_FALSE(order.follow(2));
    EXPECT_FALSE(order.follow(3));
    EXPECT_TRUE(order.follow(1));
    EXPECT_EQ(order.followed().number(), 1u);
    EXPECT_TRUE(order.has(2));
    order.forget([](uint32_t unit) { return unit == 3; }, 4);
    EXPECT_FALSE(order.has_others());
    EXPECT_EQ(units_of(order.followed().entries()), (std::vector<uint32_t>{0, 1, 2}));
}

TEST(OrderOfUses, recognises_another_order_by_its_first_uses) {
    Order order;
    order.set(entries_of({0, 1, 2, 3}), 4, false, 1);
    order.add(entries_of({0, 2, 3}), 4, 2);
    EXPECT_TRUE(order.follow(1));
    OrderRecord record;
    record.begin();
    const auto use = [&](uint32_t unit) {
        record.add(unit);
        EXPECT_TRUE(order.arrive(unit));
    };
    use(0);
    EXPECT_FALSE(order.position().deviated());
    use(2);
    EXPECT_TRUE(order.position().deviated());
    EXPECT_TRUE(order.recognise(record.entries()));
    EXPECT_EQ(order.followed().number(), 2u);
    EXPECT_EQ(order.position().cursor(), 2u);
    EXPECT_FALSE(order.position().deviated());
    use(3);
    EXPECT_EQ(order.position().cursor(), 3u);
    EXPECT_FALSE(order.recognise(record.entries())) << "no other order begins like this";
}

// A unit that is used several times in a row: the engine may be among these uses.
TEST(OrderOfUses, recognises_another_order_within_uses_in_a_row) {
    Order order;
    order.set({{0, 100, 1}, {1, 100, 1}, {2, 100, 1}}, 4, false, 1);
    order.add({{0, 100, 1}, {2, 100, 2}, {3, 100, 1}}, 4, 2);
    EXPECT_TRUE(order.follow(1));
    OrderRecord record;
    record.begin();
    for (const uint32_t unit : {0, 2}) {
        record.add(unit);
        EXPECT_TRUE(order.arrive(unit));
    }
    EXPECT_TRUE(order.recognise(record.entries()));
    EXPECT_EQ(order.position().cursor(), 1u) << "the second use is to come";
    EXPECT_TRUE(order.arrive(2));
    EXPECT_EQ(order.position().cursor(), 2u);
    EXPECT_FALSE(order.position().deviated());
}

TEST(OrderOfUses, does_not_recognise_an_order_with_fewer_uses_in_a_row) {
    Order order;
    order.set(entries_of({0, 1}), 4, false, 1);
    order.add(entries_of({2, 3}), 4, 2);
    EXPECT_TRUE(order.follow(1));
    OrderRecord record;
    EXPECT_FALSE(order.recognise(record.entries())) << "nothing was used";
    record.begin();
    record.add(2);
    record.add(2);
    EXPECT_FALSE(order.recognise(record.entries()));
    EXPECT_EQ(order.followed().number(), 1u);
}

TEST(OrderRecordOfUses, counts_uses_in_a_row_while_it_is_under_way) {
    OrderRecord record;
    record.add(1);
    EXPECT_TRUE(record.entries().empty()) << "it has not begun";
    record.begin();
    for (const uint32_t unit : {1, 1, 2, 1}) record.add(unit);
    record.end();
    record.add(3);
    EXPECT_FALSE(record.under_way());
    EXPECT_EQ(units_of(record.entries()), (std::vector<uint32_t>{1, 2, 1}));
    EXPECT_EQ(record.entries()[0].uses, 2u);
    record.forget([](uint32_t unit) { return unit == 1; });
    EXPECT_EQ(units_of(record.entries()), (std::vector<uint32_t>{2}));
    record.begin();
    EXPECT_TRUE(record.entries().empty());
}

TEST(OrderRecordOfUses, a_step_that_is_too_long_has_no_order) {
    OrderRecord record;
    record.begin();
    for (uint32_t i = 0; i < OrderRecord::kLongest - 1; i++) record.add(i % 2);
    EXPECT_EQ(record.entries().size(), OrderRecord::kLongest - 1);
    for (uint32_t i = 1; i < 4; i++) record.add(i % 2);
    EXPECT_TRUE(record.entries().empty());
    EXPECT_TRUE(record.under_way());
}

TEST(OrderOfUses, forgets_units_that_are_gone) {
    const auto one_is_gone = [](uint32_t unit) { return unit == 1; };
    Order order;
    order.set(entries_of({0, 1, 2}), 3, true);
    order.forget(one_is_gone, 3);
    EXPECT_EQ(units_of(order.followed().entries()), (std::vector<uint32_t>{0, 2}));
    EXPECT_TRUE(order.given());
    order.set_aside();
    order.forget([](uint32_t unit) { return unit == 2; }, 3);
    EXPECT_TRUE(order.take_up(3));
    EXPECT_EQ(units_of(order.followed().entries()), (std::vector<uint32_t>{0}));
}

// The blocks of one kind go, and those of the other kind stay.
TEST(OrderOfUses, another_order_takes_the_place_of_one_that_has_nothing_left) {
    Order order;
    order.set(entries_of({0, 1}), 4, false, 1);
    order.add(entries_of({2, 3}), 4, 2);
    ASSERT_TRUE(order.follow(1));
    order.forget([](uint32_t unit) { return unit < 2; }, 4);
    ASSERT_TRUE(order.known());
    EXPECT_EQ(order.followed().number(), 2u);
    EXPECT_EQ(units_of(order.followed().entries()), (std::vector<uint32_t>{2, 3}));
    EXPECT_FALSE(order.has_others());
    order.forget([](uint32_t) { return true; }, 4);
    EXPECT_FALSE(order.known());
    EXPECT_FALSE(order.given());
}

}  // namespace
}  // namespace stagehand::core
