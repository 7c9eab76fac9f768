// Members of groups that share slots: the misses beside those of other policies, and random calls beside a plain model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "../count_allocations.h"
#include "member_traces.h"
#include "policy/member_cache.h"

namespace stagehand::policy::test {
namespace {

struct MemberRow {
    Routing routing;
    uint32_t percent;
};

class MissesOfMembers : public testing::TestWithParam<MemberRow> {};

TEST_P(MissesOfMembers, AreWithinATenthOfTheBestPolicyThatKnowsNothing) {
    constexpr uint32_t kSteps = 300, kFirstSteps = 75;
    const auto [routing, percent] = GetParam();
    const Calls calls = Router(routing, {8, 32, 4}, 3).calls(kSteps);
    const uint32_t slots = calls.shape.members() * percent / 100;
    Lru lru(calls);
    Lfu lfu(calls);
    LandlordRival landlord(calls);
    Belady belady(calls);
    MemberCache cache(calls.shape.groups, calls.shape.width, slots);
    double best = 1e9;
    for (Rival* rival : std::initializer_list<Rival*>{&lru, &lfu, &landlord})
        best = std::min(best, misses_of(*rival, calls, slots, kFirstSteps));
    const double own = misses_of(cache, calls, kFirstSteps), least = misses_of(belady, calls, slots, kFirstSteps);
    EXPECT_LE(own, 1.1 * best);
    EXPECT_GE(own, least) << "nobody misses less than Belady's policy";
}

std::vector<MemberRow> rows() {
    std::vector<MemberRow> rows;
    for (const Routing routing : kRoutings)
        for (const uint32_t percent : {25u, 50u, 75u}) rows.push_back({routing, percent});
    return rows;
}
INSTANTIATE_TEST_SUITE_P(Routings, MissesOfMembers, testing::ValuesIn(rows()), [](const auto& row) {
    std::string text = std::string(name(row.param.routing)) + std::to_string(row.param.percent);
    std::erase_if(text, [](char c) { return c == ' ' || c == ','; });
    return text;
});

TEST(MemberCache, GainsMuchWhereHabitsAndTheTokenBeforeBothCount) {
    const Calls calls = Router(Routing::sticky_zipf, {8, 64, 4}, 3).calls(400);
    Lru lru(calls);
    Lfu lfu(calls);
    MemberCache cache(8, 64, 128);
    EXPECT_LT(misses_of(cache, calls, 100),
              0.95 * std::min(misses_of(lru, calls, 128, 100), misses_of(lfu, calls, 128, 100)));
}

TEST(MemberCache, FillsEmptySlotsFirst) {
    MemberCache cache(2, 4, 3);
    const std::vector<uint32_t> call{0, 1, 2};
    cache.begin_call(0, call);
    std::set<uint32_t> slots;
    for (const uint32_t member : call) {
        const auto place = cache.use(member);
        ASSERT_TRUE(place);
        EXPECT_FALSE(place->hit);
        EXPECT_EQ(place->evicted, MemberCache::kNone);
        slots.insert(place->slot);
    }
    EXPECT_EQ(slots, (std::set<uint32_t>{0, 1, 2}));
    EXPECT_FALSE(cache.use(3)) << "all are held";
    cache.release(1);
    const auto place = cache.use(3);
    ASSERT_TRUE(place);
    EXPECT_EQ(place->evicted, 1u);
}

TEST(MemberCache, KeepsWhatTheCallStillNeeds) {
    MemberCache cache(1, 8, 2);
    cache.begin_call(0, std::vector<uint32_t>{0, 1});
    for (const uint32_t member : {0u, 1u}) EXPECT_TRUE(cache.use(member));
    for (const uint32_t member : {0u, 1u}) cache.release(member);
    cache.begin_call(0, std::vector<uint32_t>{0, 1, 2});
    EXPECT_FALSE(cache.use(2)) << "0 and 1 come yet";
    EXPECT_TRUE(cache.use(0)->hit);
    EXPECT_FALSE(cache.use(2)) << "0 is held";
    cache.release(0);
    EXPECT_EQ(cache.use(2)->evicted, 0u);
    // The next call does not need what this one has left out.
    cache.begin_call(0, std::vector<uint32_t>{5});
    EXPECT_EQ(cache.use(5)->evicted, 1u);
}

// Work of a call may be queued when the next one needs the same member.
TEST(MemberCache, ACallNeedsAMemberThatTheCallBeforeStillHolds) {
    MemberCache cache(1, 4, 1);
    const std::vector<uint32_t> call{2};
    cache.begin_call(0, call);
    EXPECT_TRUE(cache.use(2));
    cache.begin_call(0, call);
    cache.release(2);
    EXPECT_FALSE(cache.use(0));
    EXPECT_TRUE(cache.use(2)->hit);
}

class MemberGuesses : public testing::Test {
protected:
    // Member 0 is always used, and the other group uses one of its four members by chance. No slot is empty.
    void SetUp() override {
        std::mt19937 random(6);
        for (int step = 0; step < 200; step++) {
            call({0});
            call({static_cast<uint32_t>(4 + random() % 4)});
        }
        ASSERT_NE(cache.slot_of(0), MemberCache::kNone);
    }
    void call(const std::vector<uint32_t>& members) {
        cache.begin_call(members.front() / 4, members);
        for (const uint32_t member : members) ASSERT_TRUE(cache.use(member));
        for (const uint32_t member : members) cache.release(member);
    }

    MemberCache cache{2, 4, 3};
};

TEST_F(MemberGuesses, TakeTheSlotOfWhatIsWorthLess) {
    const double least = cache.value(cache.victim().value());
    EXPECT_FALSE(cache.guess(3, least / 4)) << "less likely than that the victim is used";
    EXPECT_FALSE(cache.guess(3, 0));
    EXPECT_FALSE(cache.guess(3, std::nan("")));
    const auto place = cache.guess(3, 0.9);
    ASSERT_TRUE(place);
    EXPECT_FALSE(place->hit);
    EXPECT_NE(place->evicted, 0u);
    EXPECT_EQ(cache.slot_of(3), place->slot);
    EXPECT_TRUE(cache.guess(0, 0.1)->hit);
}

TEST_F(MemberGuesses, StayUntilTheirGroupIsCalled) {
    ASSERT_TRUE(cache.guess(3, 1));
    for (const uint32_t member : {4u, 5u, 6u, 7u}) call({member});
    EXPECT_NE(cache.slot_of(3), MemberCache::kNone);
    call({0});
    for (const uint32_t member : {4u, 5u, 6u, 7u}) call({member});
    EXPECT_EQ(cache.slot_of(3), MemberCache::kNone) << "it was wrong";
}

TEST_F(MemberGuesses, NeverTakeWhatIsHeldOrNeeded) {
    cache.begin_call(0, std::vector<uint32_t>{0});
    for (const uint32_t member : {1u, 2u}) ASSERT_TRUE(cache.use(member));
    EXPECT_FALSE(cache.guess(5, 1)) << "0 is needed, and the others are held";
    cache.release(2);
    EXPECT_EQ(cache.guess(5, 1)->evicted, 2u);
}

TEST(MemberCache, AGroupThatComesNoMoreLosesItsSlots) {
    std::mt19937 random(7);
    MemberCache cache(3, 4, 4);
    const auto call = [&](uint32_t group) {
        // The first group uses the same two members always. Each other has one of that kind.
        const auto other = static_cast<uint32_t>(group == 0 ? 1 : 1 + random() % 3);
        const std::vector<uint32_t> members{4 * group, 4 * group + other};
        cache.begin_call(group, members);
        for (const uint32_t member : members) ASSERT_TRUE(cache.use(member));
        for (const uint32_t member : members) cache.release(member);
    };
    for (int step = 0; step < 100; step++)
        for (const uint32_t group : {0u, 1u, 2u}) call(group);
    EXPECT_GT(cache.value(0), 0.9);
    for (int step = 0; step < 100; step++)
        for (const uint32_t group : {1u, 2u}) call(group);
    EXPECT_LT(cache.value(0), 0.01);
    for (const uint32_t member : {0u, 1u}) EXPECT_EQ(cache.slot_of(member), MemberCache::kNone);
}

TEST(MemberCache, AllocatesOnlyWhenItIsMade) {
    const Calls calls = Router(Routing::prompts, {4, 16, 2}, 5).calls(50);
    MemberCache cache(4, 16, 16);
    stagehand::test::allocations = 0;
    stagehand::test::count_allocations = true;
    misses_of(cache, calls, 0);
    cache.guess(3, 0.5);
    cache.drop(3);
    stagehand::test::count_allocations = false;
    EXPECT_EQ(stagehand::test::allocations, 0u);
}

// Knows the slots, the holds and the needs. What is worth what is the cache's own matter.
class PlainMembers {
public:
    PlainMembers(uint32_t members, uint32_t slots) : holds(members), slots_(slots) {}

    bool may_go(uint32_t member) const { return slot_of.count(member) && holds[member] == 0 && !needed.count(member); }
    bool has_room() const {
        if (slot_of.size() < slots_) return true;
        return std::any_of(slot_of.begin(), slot_of.end(), [&](const auto& entry) { return may_go(entry.first); });
    }

    // Whether the answer about the member is right, and if so, as what to take it.
    void take(uint32_t member, const std::optional<MemberCache::Place>& place) {
        ASSERT_TRUE(place);
        ASSERT_EQ(place->hit, slot_of.count(member) == 1);
        if (place->hit) {
            ASSERT_EQ(place->slot, slot_of.at(member));
            ASSERT_EQ(place->evicted, MemberCache::kNone);
            return;
        }
        if (place->evicted == MemberCache::kNone) {
            ASSERT_LT(slot_of.size(), slots_);
            for (const auto& entry : slot_of) ASSERT_NE(entry.second, place->slot);
        } else {
            ASSERT_EQ(slot_of.size(), slots_);
            ASSERT_TRUE(may_go(place->evicted));
            ASSERT_EQ(place->slot, slot_of.at(place->evicted));
            slot_of.erase(place->evicted);
        }
        slot_of[member] = place->slot;
    }

    void compare(const MemberCache& cache) const {
        for (uint32_t slot = 0, found = 0; slot < slots_; slot++) {
            const uint32_t member = cache.member_in(slot);
            if (member == MemberCache::kNone) continue;
            ASSERT_EQ(slot_of.at(member), slot);
            ASSERT_EQ(cache.slot_of(member), slot);
            ASSERT_LE(++found, slot_of.size());
        }
        for (uint32_t member = 0; member < holds.size(); member++)
            ASSERT_EQ(cache.slot_of(member) != MemberCache::kNone, slot_of.count(member) == 1);
    }

    std::map<uint32_t, uint32_t> slot_of;
    std::set<uint32_t> needed;
    std::vector<uint32_t> holds;

private:
    uint32_t slots_;
};

void play_random_calls(uint32_t seed, int operations) {
    std::mt19937 random(seed);
    const uint32_t groups = 1 + random() % 5, width = 1 + random() % 9, members = groups * width;
    const uint32_t slots = 1 + random() % members;
    MemberCache cache(groups, width, slots);
    PlainMembers plain(members, slots);
    for (int k = 0; k < operations; k++) {
        const uint32_t member = random() % members;
        switch (random() % 8) {
            case 0: {
                const uint32_t group = random() % groups;
                std::vector<uint32_t> call;
                for (uint32_t n = random() % (width + 2); n > 0; n--) call.push_back(group * width + random() % width);
                cache.begin_call(group, call);
                plain.needed = {call.begin(), call.end()};
                break;
            }
            case 1:
            case 2: {
                const auto place = cache.use(member);
                ASSERT_EQ(place.has_value(), plain.slot_of.count(member) || plain.has_room());
                if (!place) break;
                plain.take(member, place);
                plain.needed.erase(member);
                plain.holds[member]++;
                break;
            }
            case 3:
                if (plain.slot_of.count(member) == 0) break;
                cache.hold(member);
                plain.holds[member]++;
                break;
            case 4: {
                const auto place = cache.guess(member, static_cast<double>(random() % 5) / 4);
                if (place) plain.take(member, place);
                break;
            }
            case 5:
                if (random() % 4) break;
                cache.drop(member);
                plain.slot_of.erase(member);
                break;
            default:
                cache.release(member);
                if (plain.holds[member]) plain.holds[member]--;
        }
        if (testing::Test::HasFatalFailure()) return;
        if (const auto victim = cache.victim())
            ASSERT_TRUE(plain.may_go(*victim));
        else
            ASSERT_TRUE(std::none_of(plain.slot_of.begin(), plain.slot_of.end(),
                                     [&](const auto& entry) { return plain.may_go(entry.first); }));
        ASSERT_NO_FATAL_FAILURE(plain.compare(cache));
    }
}

TEST(MemberCache, KeepsItsSlotsInOrderInRandomCalls) {
    for (uint32_t seed = 0; seed < 200; seed++) {
        SCOPED_TRACE(seed);
        ASSERT_NO_FATAL_FAILURE(play_random_calls(seed, 500));
    }
}

}  // namespace
}  // namespace stagehand::policy::test
