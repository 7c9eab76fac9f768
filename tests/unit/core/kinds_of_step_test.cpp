// Kinds of step that alternate: told apart by name and by order, and planned for together. In virtual time.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <sstream>
#include <variant>

#include "../../stress/scale.h"
#include "engine.h"
#include "policy/joint_trace.h"
#include "policy/recurrence.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kLayers = 24, kLayer = 1 << 20;
constexpr double kLayerCopyNs = 4'194'304;

// `later_link` are options of the simulation. The link is measured then.
DeviceSettings with_part_of_the_layers(double part, const std::string& later_link) {
    DeviceSettings settings;
    settings.name = "sim";
    settings.options = "bandwidth=250MB/s;granularity=64KiB" + later_link;
    settings.page_bytes = 64 << 10;
    settings.link_bytes_per_second = later_link.empty() ? 250'000'000 : 0;
    settings.budget_bytes = static_cast<uint64_t>(part * kLayers * kLayer) >> 16 << 16;
    return settings;
}

// An engine whose steps use some of the layers, and compute for a part of the time that the copies of a step take.
class KindsEngine {
public:
    explicit KindsEngine(double part, const std::string& later_link = {})
        : part_(part), device_(with_part_of_the_layers(part, later_link)) {}

    struct Step {
        const char* name = nullptr;
        double compute = 1;
        std::vector<size_t> layers = forward(kLayers);
    };
    void step(const Step& step, double noise = 0) {
        EXPECT_SUCCEEDS(sh_step_begin(model_.runtime(), step.name));
        for (const size_t i : step.layers) {
            auto view = sh_sized<sh_view>();
            random_ = random_ * 6364136223846793005 + 1442695040888963407;
            const double factor = 1 + noise * (static_cast<double>(random_ >> 33) / (uint64_t{1} << 30) - 1);
            const double busy = step.compute * (1 - part_) * kLayerCopyNs * factor;
            EXPECT_SUCCEEDS(sh_acquire(model_.runtime(), model_.id(i), stream_, 0, &view));
            EXPECT_SUCCEEDS(sh_stream_launch(device_.get(), stream_, nullptr, nullptr, std::llround(busy)));
            EXPECT_SUCCEEDS(sh_release(model_.runtime(), model_.id(i), stream_));
        }
        EXPECT_SUCCEEDS(sh_step_end(model_.runtime()));
        EXPECT_SUCCEEDS(sh_stream_synchronize(device_.get(), stream_));
    }
    // Makes the cycle some times. Returns its mean time in the last half of them, in nanoseconds.
    double run(const std::vector<Step>& cycle, int times, double noise = 0) {
        uint64_t began = 0;
        for (int k = 0; k < times; k++) {
            if (k == times / 2) began = now();
            for (const Step& one : cycle) step(one, noise);
        }
        return static_cast<double>(now() - began) / (times - times / 2);
    }
    uint64_t now() {
        uint64_t now = 0;
        EXPECT_SUCCEEDS(sh_device_get_clock(device_.get(), &now));
        return now;
    }
    // A time that a step of the kind cannot beat: max(compute, (W - M) / link).
    double bound(double compute) const { return std::max(1.0, compute) * (1 - part_) * kLayerCopyNs * kLayers; }
    uint64_t plans() { return model_.stats().plans; }
    Model& model() { return model_; }
    TestDevice& device() { return device_; }
    std::vector<sh_kind_info> kinds() {
        std::vector<sh_kind_info> kinds(8, sh_sized<sh_kind_info>());
        uint64_t count = 0;
        EXPECT_SUCCEEDS(sh_kind_list(model_.runtime(), kinds.data(), kinds.size(), &count));
        kinds.resize(count);
        return kinds;
    }

private:
    const double part_;
    TestDevice device_;
    Model model_{device_, equal_blocks(kLayers, kLayer)};
    const sh_stream stream_ = device_.stream();
    uint64_t random_ = 1;
};

std::vector<KindsEngine::Step> prefill_and_decode(int decodes, bool named = true) {
    std::vector<KindsEngine::Step> cycle(1 + decodes, {named ? "decode" : nullptr, 0.1});
    cycle[0] = {named ? "prefill" : nullptr, 3};
    return cycle;
}

// The time of the cycle with the plan for one of its kinds, which the engine has made until then.
double with_plan_for(double part, const KindsEngine::Step& kind, const std::vector<KindsEngine::Step>& cycle) {
    KindsEngine engine(part);
    std::vector<sh_use> uses;
    for (const size_t i : kind.layers) {
        uses.push_back(SH_USE_INIT);
        uses.back().block = engine.model().id(i);
        uses.back().compute_ns = static_cast<uint64_t>(kind.compute * (1 - part) * kLayerCopyNs);
    }
    EXPECT_SUCCEEDS(sh_set_schedule(engine.model().runtime(), uses.data(), uses.size()));
    return engine.run(cycle, 8);
}

constexpr double kBudgetParts[] = {0.25, 0.5, 0.75, 0.9};

class Kinds : public testing::TestWithParam<double> {
protected:
    // The number of the budget among those that the tests run with.
    static uint64_t budget() {
        return static_cast<uint64_t>(std::ranges::find(kBudgetParts, GetParam()) - std::begin(kBudgetParts));
    }
};

TEST_P(Kinds, InTurnGetThePlanForBoth) {
    if (devices_without_pages() || kOneThreadOnly)
        GTEST_SKIP() << "the simulation maps memory by pages, and has one thread";
    double worst = 1;
    uint64_t number = 3 * budget();
    for (const int decodes : {1, 10, 100}) {
        if (!in_sample(number++)) continue;
        const auto cycle = prefill_and_decode(decodes);
        KindsEngine engine(GetParam());
        engine.run(cycle, decodes == 100 ? 9 : 24);
        const uint64_t plans = engine.plans();
        const double time = engine.run(cycle, 6);
        EXPECT_LE(plans, 5u) << "1 to " << decodes;
        EXPECT_EQ(engine.plans(), plans) << "1 to " << decodes;
        const double prefill = with_plan_for(GetParam(), cycle[0], cycle);
        const double decode = with_plan_for(GetParam(), cycle[1], cycle);
        EXPECT_LE(time, 1.02 * std::min(prefill, decode)) << "1 to " << decodes << ": " << prefill << ", " << decode;
        EXPECT_LE(time, 1.11 * (engine.bound(3) + decodes * engine.bound(0.1))) << "1 to " << decodes;
        worst = std::max(worst, std::max(prefill, decode) / time);
        for (const sh_kind_info& kind : engine.kinds()) {
            const double compute = (strcmp(kind.name, "prefill") ? 0.1 : 3) * (1 - GetParam()) * kLayers * kLayerCopyNs;
            EXPECT_NEAR(static_cast<double>(kind.compute_ns), compute, 0.01 * compute) << kind.name;
        }
    }
    EXPECT_TRUE(worst > 1.02 || !whole_length()) << "one of the plans has to be worse, or this test shows nothing";
}

INSTANTIATE_TEST_SUITE_P(Budgets, Kinds, testing::ValuesIn(kBudgetParts));

TEST(KindsWithNoise, MoveNoPage) {
    if (devices_without_pages() || kOneThreadOnly)
        GTEST_SKIP() << "the simulation maps memory by pages, and has one thread";
    for (const bool named : {true, false}) {
        KindsEngine engine(0.4);
        const auto cycle = prefill_and_decode(4, named);
        for (int k = 0; k < 10; k++) engine.step(cycle[static_cast<size_t>(k) % cycle.size()], 0.2);
        const uint64_t plans = engine.plans();
        engine.run(cycle, 200, 0.2);
        EXPECT_LE(engine.plans(), plans + 2) << (named ? "named" : "not named");
    }
}

// A training engine makes a validation, which uses the layers forwards alone, between its steps.
TEST(KindsWithOrders, AreFollowedEach) {
    if (devices_without_pages() || kOneThreadOnly)
        GTEST_SKIP() << "the simulation maps memory by pages, and has one thread";
    std::vector<size_t> half;
    for (size_t i = 0; i < kLayers; i += 2) half.push_back(i);
    uint64_t number = 0;
    for (const bool named : {true, false})
        for (const auto& other : {std::vector<size_t>(forward(kLayers)), half, forward(10)}) {
            if (!in_sample(number++)) continue;
            KindsEngine engine(0.5);
            const KindsEngine::Step full{named ? "training" : nullptr, 1, forward_backward(kLayers)};
            const KindsEngine::Step part{named ? "validation" : nullptr, 1, other};
            const std::vector<KindsEngine::Step> cycle{full, full, full, part, part};
            engine.run(cycle, 10);
            const uint64_t plans = engine.plans();
            const sh_runtime_stats before = engine.model().stats();
            engine.run(cycle, 10);
            const sh_runtime_stats after = engine.model().stats();
            EXPECT_EQ(engine.plans(), plans) << "an order was thrown away";
            EXPECT_LE(after.misses - before.misses, (after.acquires - before.acquires) / 50)
                << (named ? "named, " : "not named, ") << other.size() << " layers";
        }
}

// Some steps of one kind in a row.
struct Visit {
    uint32_t kind, steps;
};

// The time of a step of the cycle for somebody who knows the kinds and the speed of the link from the beginning.
double known_from_the_beginning(double part, double speed, const std::vector<KindsEngine::Step>& kinds,
                                const std::vector<Visit>& cycle) {
    std::vector<policy::Unit> units(kLayers, policy::Unit{kLayer});
    std::vector<std::vector<policy::Use>> orders;  // with the times of the kinds that compute like they copy
    std::vector<policy::Use> whole;
    double steps = 0;
    for (const Visit& visit : cycle) {
        const KindsEngine::Step& kind = kinds[visit.kind];
        std::vector<policy::Use> trace;
        for (const size_t i : kind.layers)
            trace.push_back(
                {static_cast<uint32_t>(i), static_cast<uint64_t>(kind.compute * (1 - part) * kLayerCopyNs)});
        const auto imbalance = [&](const KindsEngine::Step& of) { return std::fabs(std::log(of.compute * speed)); };
        const bool balanced = std::ranges::none_of(cycle, [&](const Visit& other) {
            return kinds[other.kind].layers == kind.layers && imbalance(kinds[other.kind]) < imbalance(kind);
        });
        if (balanced) orders.push_back(trace);
        for (uint32_t k = 0; k < visit.steps; k++) whole.insert(whole.end(), trace.begin(), trace.end());
        steps += visit.steps;
    }
    const policy::JointTrace joint = policy::join_orders(orders, 1);
    policy::Problem problem;
    problem.units = units;
    problem.trace = joint.trace;
    problem.page_bytes = 64 << 10;
    problem.budget_pages = static_cast<uint64_t>(part * kLayers * kLayer) >> 16;
    problem.link_bytes_per_ns = 0.25 * speed;
    const auto plan = std::get<policy::Plan>(policy::make_plan(problem));
    problem.trace = whole;
    return policy::simulate(problem, plan, 64)->step_ns / steps;
}

// STAGEHAND_STRESS_SCALE=5 makes a hundred instances, of which three take more than 1.05 times as long.
TEST(KindsAtRandom, AreNearlyAsFastAsIfTheyWereKnown) {
    if (devices_without_pages() || kOneThreadOnly)
        GTEST_SKIP() << "the simulation maps memory by pages, and has one thread";
    std::mt19937 random(2024);
    double sum = 0, sum_of_known = 0;
    uint64_t above = 0;
    std::ostringstream told;
    for (uint64_t instance = 0; instance < scaled(20); instance++) {
        const double part = 0.2 + 0.7 * static_cast<double>(random() % 100) / 100;
        const bool named = random() % 2;
        const uint32_t count = 2 + static_cast<uint32_t>(random() % 2);
        // Others than the whole one. Kinds without a name are told apart by them.
        const uint32_t orders = named ? static_cast<uint32_t>(random() % 3) : count - 1;
        std::vector<std::string> names;
        std::vector<KindsEngine::Step> kinds;
        std::vector<Visit> cycle;
        for (uint32_t kind = 0; kind < count; kind++) names.push_back("kind " + std::to_string(kind));
        for (uint32_t kind = 0; kind < count; kind++) {
            const double compute = std::pow(10.0, static_cast<double>(random() % 160) / 100 - 1);
            const size_t layers = kind && kind <= orders ? kLayers - kind - random() % (kLayers / 4) * 2 : kLayers;
            kinds.push_back({named ? names[kind].c_str() : nullptr, compute, forward(layers)});
            cycle.push_back({kind, named ? 1 + static_cast<uint32_t>(random() % 12) : 1});
        }
        std::vector<KindsEngine::Step> steps;
        for (const Visit& visit : cycle) steps.insert(steps.end(), visit.steps, kinds[visit.kind]);
        // In every second instance the link gets up to four times faster or slower.
        const double speed = instance % 2 ? std::pow(4.0, static_cast<double>(random() % 200) / 100 - 1) : 1;
        constexpr uint64_t kLaterNs = 2'000'000'000;
        const std::string later =
            ";later_from=2s;later_bandwidth=" + std::to_string(static_cast<uint64_t>(speed * 250e6)) + "B/s";
        KindsEngine engine(part, instance % 2 ? later : std::string());
        const int times = std::max<int>(4, 160 / static_cast<int>(steps.size()));
        while (instance % 2 && engine.now() < kLaterNs) engine.run(steps, 2);
        engine.run(steps, times);
        const double time = engine.run(steps, 6);
        const double known = known_from_the_beginning(part, speed, kinds, cycle) * static_cast<double>(steps.size());
        if (time > 1.05 * known) {
            above++;
            told << "instance " << instance << ": " << time / known << " with " << count << " kinds, "
                 << (named ? "named" : "not named") << ", " << orders << " other orders, budget " << part
                 << ", a link of " << speed << ", " << steps.size() << " steps, " << engine.plans() << " plans\n";
        }
        sum += time;
        sum_of_known += known;
    }
    EXPECT_LE(sum, 1.03 * sum_of_known);
    EXPECT_LE(above, scaled(20) / 20) << told.str();
}

TEST(KindsByName, AreCheckedAndKept) {
    KindsEngine engine(0.5);
    sh_runtime* const runtime = engine.model().runtime();
    for (int k = 0; k < 12; k++) engine.step({("kind " + std::to_string(k)).c_str(), 1, forward(kLayers)});
    const auto kinds = engine.kinds();
    ASSERT_EQ(kinds.size(), 8u);
    EXPECT_TRUE(std::ranges::any_of(kinds, [](const auto& kind) { return !strcmp(kind.name, "kind 11"); }));
    EXPECT_TRUE(std::ranges::none_of(kinds, [](const auto& kind) { return !strcmp(kind.name, "kind 2"); }));
    uint64_t count = 0;
    SUCCEEDS(sh_kind_list(runtime, nullptr, 0, &count));
    EXPECT_EQ(count, 8u);
}

}  // namespace
}  // namespace stagehand::test
