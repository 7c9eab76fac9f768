// Victims among blocks without a known order, compared with a landlord that really collects the rent.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "../count_allocations.h"
#include "policy/landlord.h"

namespace stagehand::policy::test {
namespace {

// Collects rent from every resident block before each eviction, instead of raising the starting credit of new blocks.
class NaiveLandlord {
public:
    struct Block {
        double cost_a_byte = 0, credit = 0;
        uint64_t last_use = 0;
        int held = 0;
    };

    void use(Landlord::Id id, double cost_a_byte, double uses) {
        Block& block = blocks_[id];
        block.cost_a_byte = cost_a_byte;
        block.credit = uses * cost_a_byte;
        block.last_use = ++clock_;
    }
    std::optional<Landlord::Id> victim() const {
        std::optional<Landlord::Id> best;
        for (const auto& [id, block] : blocks_)
            if (block.held == 0 && (!best || std::pair(block.credit, block.last_use) <
                                                 std::pair(blocks_.at(*best).credit, blocks_.at(*best).last_use)))
                best = id;
        return best;
    }
    void evict(Landlord::Id id) {
        // A block that was held during evictions may be in debt. It pays no more than it has.
        double rent = std::max(0.0, blocks_[id].credit);
        blocks_.erase(id);
        for (auto& [other, block] : blocks_) block.credit -= rent;
    }
    std::map<Landlord::Id, Block> blocks_;

private:
    uint64_t clock_ = 0;
};

TEST(Landlord, NamesTheSameVictimsAsOneWhoCollects) {
    std::mt19937 random(41);
    int evicted = 0, all_held = 0;
    for (int round = 0; round < 60; round++) {
        Landlord landlord;
        NaiveLandlord naive;
        const uint32_t ids = 4 + random() % 30;
        std::vector<uint64_t> bytes(ids);
        for (uint64_t& b : bytes) b = uint64_t{1} << random() % 5;  // so that all credits are exact
        for (int k = 0; k < 400; k++) {
            Landlord::Id id = random() % ids;
            bool resident = naive.blocks_.count(id);
            double cost = static_cast<double>(1 + id % 7);
            switch (random() % 5) {
                case 0:
                case 1:
                    if (resident)
                        landlord.touch(id);
                    else
                        landlord.insert(id, bytes[id], cost);
                    naive.use(id, cost / static_cast<double>(bytes[id]), landlord.uses(id));
                    break;
                case 2:
                    landlord.hold(id);
                    if (resident) naive.blocks_[id].held++;
                    break;
                case 3:
                    landlord.release(id);
                    if (resident && naive.blocks_[id].held) naive.blocks_[id].held--;
                    break;
                default: {
                    auto expected = naive.victim();
                    auto got = landlord.victim();
                    ASSERT_EQ(expected, got) << "round " << round << " step " << k;
                    if (!got) {
                        all_held += !naive.blocks_.empty();
                        break;
                    }
                    landlord.evict(*got);
                    naive.evict(*got);
                    evicted++;
                }
            }
            ASSERT_EQ(naive.blocks_.size(), landlord.resident());
        }
    }
    EXPECT_GT(evicted, 2000);
    EXPECT_GT(all_held, 20);
}

TEST(Landlord, RemembersHowOftenABlockWasUsedWhileItWasAway) {
    Landlord landlord;
    landlord.insert(1, 10, 10);
    landlord.insert(2, 10, 10);
    for (int k = 0; k < 9; k++) landlord.touch(1);
    landlord.evict(1);
    landlord.insert(1, 10, 10);
    landlord.insert(3, 10, 10);
    EXPECT_EQ(2u, landlord.victim()) << "1 has been used often";
    landlord.evict(2);
    EXPECT_EQ(3u, landlord.victim());
    landlord.forget(1);
    EXPECT_EQ(0, landlord.uses(1));
}

TEST(Landlord, OldUsesCountLess) {
    Landlord landlord;
    for (Landlord::Id id = 0; id < 10; id++) landlord.insert(id, 10, 10);
    for (int k = 0; k < 50; k++) landlord.touch(0);
    double before = landlord.uses(0);
    for (int k = 0; k < 2000; k++) landlord.touch(1 + k % 9);
    EXPECT_LT(landlord.uses(0), before / 1000);
    EXPECT_GT(landlord.uses(1), 1);
    landlord.touch(0);
    EXPECT_LT(landlord.uses(0), 2) << "one use brings no old ones back";
}

// A release that needs memory could fail, and its block would stay held for ever.
TEST(Landlord, HoldsAreTakenAndEndedWithoutMemory) {
    Landlord landlord;
    for (Landlord::Id id = 1; id < 10; id++) landlord.insert(id, 10, static_cast<double>(id));
    landlord.evict(3);
    landlord.expect(10);
    stagehand::test::allocations = 0;
    stagehand::test::count_allocations = true;
    for (Landlord::Id id = 1; id < 10; id++) landlord.hold(id);
    for (Landlord::Id id = 1; id < 10; id++) landlord.touch(id);
    for (Landlord::Id id = 1; id < 10; id++) landlord.release(id);
    landlord.insert(3, 10, 1);   // it was there before
    landlord.insert(10, 10, 1);  // and this one was expected
    stagehand::test::count_allocations = false;
    EXPECT_EQ(stagehand::test::allocations, 0u);
    EXPECT_EQ(10u, landlord.resident());
    for (int left = 10; left > 0; left--) landlord.evict(landlord.victim().value());
    EXPECT_EQ(0u, landlord.resident());
}

}  // namespace
}  // namespace stagehand::policy::test
