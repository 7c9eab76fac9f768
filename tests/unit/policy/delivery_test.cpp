// Delivery: which loads tell how fast a source delivers.
#include "policy/delivery.h"

#include <gtest/gtest.h>

namespace stagehand::policy::test {
namespace {

TEST(Delivery, TheFirstLoadDoesNotCount) {
    Delivery delivery;
    EXPECT_EQ(delivery.first(), 0);
    delivery.saw(50);
    EXPECT_EQ(delivery.ns_per_byte(), 0);
    EXPECT_EQ(delivery.first(), 50);
    delivery.saw(2);
    EXPECT_EQ(delivery.ns_per_byte(), 2);
    EXPECT_EQ(delivery.first(), 50);
}

TEST(Delivery, OneSlowLoadCountsForNothingAndTwoDo) {
    Delivery delivery;
    for (const double ns : {50, 2, 30}) delivery.saw(ns);
    EXPECT_EQ(delivery.ns_per_byte(), 2) << "the faster one of two";
    delivery.saw(3);
    EXPECT_EQ(delivery.ns_per_byte(), 3) << "the median of 2, 30 and 3";
    for (const double ns : {2, 2, 40}) delivery.saw(ns);
    EXPECT_EQ(delivery.ns_per_byte(), 2);
    delivery.saw(40);
    EXPECT_EQ(delivery.ns_per_byte(), 40);
}

}  // namespace
}  // namespace stagehand::policy::test
