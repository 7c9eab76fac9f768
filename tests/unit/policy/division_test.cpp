// Compares the division by value with divisions found by brute force, and tests when a new division is worth a change.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "../../stress/scale.h"
#include "policy/bounds.h"
#include "policy/division.h"
#include "policy/step_curve.h"
#include "problems.h"

namespace stagehand::policy::test {
namespace {

using stagehand::test::shortened;

using Pages = std::vector<uint64_t>;
using Curve = std::vector<CurvePoint>;

uint64_t sum(const Pages& pages) { return std::accumulate(pages.begin(), pages.end(), uint64_t{0}); }

TEST(Division, WhoGainsNothingTakesPartInWhatIsLeft) {
    const Curve falling = {{10, 1000}, {20, 500}}, level = {{0, 700}, {100, 700}};
    const double rates[] = {0, -1, std::numeric_limits<double>::infinity(), std::nan("")};
    for (const double rate : rates) {
        const Stake stakes[] = {{10, 50, 1, falling}, {0, 60, rate, falling}, {5, 95, 1, level}, {0, 30, 1, {}}};
        EXPECT_EQ((Pages{20, 0, 5, 0}), divide_by_value(25, stakes));
        // 30, 60, 90 and 30 are wanted besides.
        EXPECT_EQ((Pages{22, 4, 11, 2}), divide_by_value(39, stakes));
        EXPECT_EQ((Pages{50, 60, 95, 30}), divide_by_value(1000, stakes));
        EXPECT_EQ(500 + 700, time_per_second(stakes, Pages{20, 0, 5, 0}));
    }
}

TEST(Division, NeitherSmallestNorHugestNumbersMatter) {
    const uint64_t huge = UINT64_MAX / 2;
    const Curve curve = {{0, 1e12}, {huge, 1}};
    const Stake stakes[] = {{1, huge, 1e9, curve}, {1, huge, 1e-9, curve}, {0, UINT64_MAX, 0, {}}};
    for (uint64_t pages : {uint64_t{2}, uint64_t{1} << 40, huge, UINT64_MAX - 1, UINT64_MAX}) {
        const auto shares = divide_by_value(pages, stakes);
        ASSERT_TRUE(shares);
        EXPECT_EQ(pages, sum(*shares));
    }
    const Stake overflowing[] = {{UINT64_MAX, 0, 1, {}}, {2, 0, 1, {}}};
    EXPECT_FALSE(divide_by_value(UINT64_MAX, overflowing));
}

TEST(Division, TimeIsLinearBetweenPointsAndConstantOutside) {
    const Curve curve = {{10, 1000}, {20, 500}, {40, 100}};
    const Stake stakes[] = {{0, 100, 2, curve}};
    EXPECT_DOUBLE_EQ(2000, time_per_second(stakes, Pages{0}));
    EXPECT_DOUBLE_EQ(2000, time_per_second(stakes, Pages{10}));
    EXPECT_DOUBLE_EQ(1500, time_per_second(stakes, Pages{15}));
    EXPECT_DOUBLE_EQ(1000, time_per_second(stakes, Pages{20}));
    EXPECT_DOUBLE_EQ(600, time_per_second(stakes, Pages{30}));
    EXPECT_DOUBLE_EQ(200, time_per_second(stakes, Pages{90}));
}

// Returns the least time per second over all divisions, stake by stake.
double best_time(uint64_t pages, std::span<const Stake> stakes) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    std::vector<double> best(pages + 1, 0);  // with at most so many pages
    for (size_t k = 0; k < stakes.size(); k++) {
        std::vector<double> with(pages + 1, infinity);
        for (uint64_t all = 0; all <= pages; all++)
            for (uint64_t own = stakes[k].floor_pages; own <= std::min(all, stakes[k].most_pages); own++)
                with[all] = std::min(with[all], best[all - own] + time_per_second(stakes.subspan(k, 1), Pages{own}));
        best = std::move(with);
    }
    return best[pages];
}

enum class Kind { convex, stairs, any };

// Falls; on a convex one, by less a page from point to point.
Curve random_curve(std::mt19937& random, uint64_t least, uint64_t most, Kind shape) {
    const auto some = [&] { return 0.3 + 0.7 * (random() % 1000) / 1000.0; };
    Curve curve = {{least, 3000.0 + random() % 1000}};
    double per_page = 1 + random() % 100;
    for (uint64_t more = 1 + random() % 6; curve.back().pages + more <= most; more = 1 + random() % 6) {
        double step = curve.back().step_ns;
        if (shape == Kind::convex) {
            per_page *= some();
            step = std::max(1.0, step - per_page * double(more));
        } else if (shape == Kind::any || random() % 3 == 0) {
            step *= some();
        }
        curve.push_back({curve.back().pages + more, step});
    }
    return curve;
}

void compare_with_all_divisions(Kind shape, double tolerance, uint32_t seed) {
    std::mt19937 random(seed);
    for (uint64_t round = 0; round < shortened(4000); round++) {
        const size_t count = 1 + random() % 4;
        std::vector<Curve> curves(count);
        std::vector<Stake> stakes(count);
        Pages lowest;
        uint64_t floors = 0, most = 0;
        for (size_t k = 0; k < count; k++) {
            Stake& stake = stakes[k];
            stake.floor_pages = random() % 8;
            stake.most_pages = stake.floor_pages + random() % 30;
            stake.steps_per_second = std::pow(10, (random() % (round % 2 ? 300 : 50)) / 100.0);
            if (shape == Kind::convex) stake.most_pages = stake.floor_pages;
            curves[k] = random_curve(random, stake.floor_pages, stake.floor_pages + random() % 40, shape);
            // On convex ones nothing is cut off, since constant ends are not.
            if (shape == Kind::convex) stake.most_pages = std::max(stake.floor_pages, curves[k].back().pages);
            stake.curve = curves[k];
            lowest.push_back(stake.floor_pages);
            floors += stake.floor_pages;
            most += stake.most_pages;
        }
        const uint64_t pages = floors + random() % (most - floors + 5);
        const auto shares = divide_by_value(pages, stakes);
        ASSERT_TRUE(shares);
        ASSERT_EQ(std::min(pages, most), sum(*shares)) << "all is handed out; round " << round;
        for (size_t k = 0; k < count; k++) {
            ASSERT_GE((*shares)[k], stakes[k].floor_pages);
            ASSERT_LE((*shares)[k], stakes[k].most_pages);
        }
        ASSERT_EQ(shares, divide_by_value(pages, stakes));
        // Values that are 1 % apart count as equal, which may cost 1 % of what is saved.
        const double best = best_time(pages, stakes), saved = time_per_second(stakes, lowest) - best;
        ASSERT_LE(time_per_second(stakes, *shares), best * tolerance + 0.0101 * saved + 1e-9)
            << count << " stakes, round " << round;
    }
}

TEST(Division, IsTheBestOfAllOnConvexCurves) { compare_with_all_divisions(Kind::convex, 1, 81); }

// A convex hull is not enough here, because the curve lies above it between its corners.
TEST(Division, IsTheBestOfAllOnCurvesThatAreNotConvex) {
    compare_with_all_divisions(Kind::any, 1.002, 82);
    compare_with_all_divisions(Kind::stairs, 1.002, 83);
}

struct Model {
    Case problem;
    uint64_t least = 0, all = 0;
    Curve curve;

    explicit Model(Case c) : problem(std::move(c)) {
        least = smallest_budget(problem.problem()).smallest_budget_pages;
        all = problem.pages();
        curve = step_curve(problem.problem(), least, all);
    }
    Stake stake(double rate) const { return {least, all, rate, curve}; }
};

// Rates that vary around means, and the number of changes of the shares in force.
class Fluctuation {
public:
    Fluctuation(uint64_t pages, std::vector<Stake> stakes, uint32_t seed)
        : pages_(pages), stakes_(std::move(stakes)), random_(seed) {
        for (const Stake& stake : stakes_) means_.push_back(stake.steps_per_second);
        fluctuate();
        shares_ = *divide_by_value(pages_, stakes_);
    }

    // Considers rates that are up to 30 % off. Returns true if the shares change.
    bool look() {
        fluctuate();
        Pages then = *divide_by_value(pages_, stakes_);
        if (!worth_changing(stakes_, shares_, then)) return false;
        shares_ = std::move(then);
        return true;
    }
    int changes(int looks) {
        int changes = 0;
        for (int k = 0; k < looks; k++) changes += look();
        return changes;
    }
    void shift(size_t stake, double factor) { means_[stake] *= factor; }

    const Pages& shares() const { return shares_; }

private:
    void fluctuate() {
        for (size_t k = 0; k < stakes_.size(); k++)
            stakes_[k].steps_per_second = means_[k] * (0.7 + 0.6 * (random_() % 10'001) / 10'000.0);
    }

    uint64_t pages_;
    std::vector<Stake> stakes_;
    std::vector<double> means_;
    Pages shares_;
    std::mt19937 random_;
};

// The hardest case: one model loses what the other gains. By the measured rates, all memory belongs to the model that
// seems to be used more.
TEST(Hysteresis, EqualModelsThatWaitForTheLinkKeepTheirShares) {
    Case c = eight_billion();
    c.set_budget(0.5);
    c.set_compute(0.1, Compute::equal);
    const Model model(c);
    for (size_t count : {2, 3, 5})
        for (uint32_t seed = 1; seed <= shortened(20); seed++) {
            Fluctuation rates(model.all * count / 2, std::vector<Stake>(count, model.stake(3)), seed);
            EXPECT_LE(rates.changes(500), 1) << count << " models, seed " << seed;
            // The one with least is used three times as often.
            const Pages before = rates.shares();
            const size_t least = static_cast<size_t>(std::min_element(before.begin(), before.end()) - before.begin());
            rates.shift(least, 3);
            EXPECT_GE(rates.changes(20), 1) << count << " models, seed " << seed;
            EXPECT_GT(rates.shares()[least], before[least]);
            EXPECT_LE(rates.changes(500), 1) << count << " models, seed " << seed;
        }
}

TEST(Hysteresis, SmallSavingsAreNotWorthIt) {
    const Curve large = {{0, 1000}, {100, 0}}, small = {{0, 15}, {100, 0}};
    const Stake stakes[] = {{0, 100, 1, large}, {0, 100, 1, small}};
    EXPECT_FALSE(worth_changing(stakes, Pages{30, 10}, Pages{30, 100})) << "although nobody loses";
    EXPECT_TRUE(worth_changing(stakes, Pages{30, 100}, Pages{40, 90}));
    EXPECT_FALSE(worth_changing(stakes, Pages{30, 100}, Pages{30, 100}));
    EXPECT_FALSE(worth_changing(stakes, Pages{100, 100}, Pages{100, 100}));
}

TEST(Hysteresis, WhoGainsSavesTwiceWhatTheOthersLose) {
    const Curve curve = {{0, 1000}, {100, 0}};
    const Stake twice[] = {{0, 100, 1, curve}, {0, 100, 2.001, curve}};
    EXPECT_TRUE(worth_changing(twice, Pages{80, 20}, Pages{20, 80}));
    EXPECT_FALSE(worth_changing(twice, Pages{20, 80}, Pages{80, 20}));
    const Stake less[] = {{0, 100, 1, curve}, {0, 100, 1.999, curve}};
    EXPECT_FALSE(worth_changing(less, Pages{80, 20}, Pages{20, 80}));
}

TEST(Hysteresis, SharesThatCannotStayChange) {
    const Curve curve = {{0, 1000}, {100, 0}};
    const Stake stakes[] = {{10, 100, 1, curve}, {10, 100, 1, curve}};
    EXPECT_TRUE(worth_changing(stakes, Pages{50, 50}, Pages{50, 49})) << "less memory";
    EXPECT_TRUE(worth_changing(stakes, Pages{5, 50}, Pages{10, 45})) << "below the floor";
    EXPECT_TRUE(worth_changing(stakes, Pages{100}, Pages{50, 50})) << "one more";
    EXPECT_FALSE(worth_changing(stakes, Pages{50, 50}, Pages{100})) << "not a division of these";
    EXPECT_TRUE(worth_changing(stakes, Pages{50, 50}, Pages{60, 50})) << "more memory";
}

}  // namespace
}  // namespace stagehand::policy::test
