// Measures the cost of dividing memory: comparisons and time of a choice of victims by the number of parts, time of a
// step's curve by the number of units, and time of a division by the number of models. The comparisons are the same on
// every machine, the times are not.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "measure.h"
#include "policy/division.h"
#include "policy/plan.h"
#include "policy/step_curve.h"
#include "policy/victims.h"

namespace {

using namespace stagehand::policy;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Returns the median time of one call, in ns.
template <class Work>
double time_ns(Work&& work) {
    std::vector<double> times;
    double once = bench::seconds(work);
    const int calls = std::clamp(static_cast<int>(2e-3 / std::max(once, 1e-9)), 1, 10'000);
    for (int round = 0; round < 9; round++)
        times.push_back(bench::seconds([&] {
                            for (int k = 0; k < calls; k++) work();
                        }) /
                        calls * 1e9);
    return bench::median(times);
}

void victims() {
    constexpr size_t holders_count = 8;
    std::printf(
        "\nChoosing victims among %zu holders, random times of next use, parts of 1 to 8 pages\n\n"
        "| parts | pages wanted | comparisons | ns |\n|--:|--:|--:|--:|\n",
        holders_count);
    for (const uint64_t parts_count : {1'000, 10'000, 100'000, 1'000'000}) {
        std::mt19937_64 random(1);
        std::vector<std::vector<Part>> parts(holders_count);
        std::vector<Holder> holders(holders_count);
        for (size_t h = 0; h < holders_count; h++) {
            for (uint64_t k = 0; k < parts_count / holders_count; k++)
                parts[h].push_back({random() % 100'000'000, 1 + random() % 8});
            std::sort(parts[h].begin(), parts[h].end(),
                      [](const Part& a, const Part& b) { return a.due_ns < b.due_ns; });
            holders[h] = {Priority::none, static_cast<double>(random() % 1'000'000), UINT64_MAX, parts[h]};
        }
        for (const uint64_t pages : {1, 16, 256, 2048}) {
            uint64_t comparisons = 0;
            const double ns = time_ns([&] { choose_victims(pages, holders, &comparisons); });
            std::printf("| %llu | %llu | %llu | %.0f |\n", static_cast<unsigned long long>(parts_count),
                        static_cast<unsigned long long>(pages), static_cast<unsigned long long>(comparisons), ns);
        }
    }
}

// A model with `count` units, from which a curve is made.
struct Model {
    std::vector<Unit> units;
    std::vector<Use> trace;
    Problem problem;

    Model(uint32_t count, bool whole, std::mt19937& random) {
        uint64_t bytes = 0;
        for (uint32_t u = 0; u < count; u++) {
            units.push_back({(1 + random() % 60) * kMiB, whole});
            bytes += units.back().bytes;
        }
        // The compute time is between a tenth of the time to copy all bytes and that whole time.
        const double compute =
            static_cast<double>(bytes) / 55.5 * std::pow(10, -static_cast<double>(random() % 100) / 100);
        for (uint32_t u = 0; u < count; u++) trace.push_back({u, static_cast<uint64_t>(compute / count)});
        problem = {units, trace, 2 * kMiB, 0, 1, 55.5, 0};
    }
    Model(const Model&) = delete;
};

void curves() {
    std::printf("\nMaking a step's curve over memory, 16 points\n\n| units | kind | ms |\n|--:|---|--:|\n");
    for (const uint32_t count : {10u, 30u, 100u, 300u, 1'000u, 10'000u, 100'000u})
        for (const bool whole : {false, true}) {
            std::mt19937 random(3);
            const Model model(count, whole, random);
            const double ns = time_ns([&] { step_curve(model.problem, 0, UINT64_MAX); });
            std::printf("| %u | %s | %.2f |\n", count, whole ? "whole" : "divided", ns / 1e6);
        }
}

void divisions() {
    std::printf(
        "\nDividing half of the memory that all models want, curves of 16 points\n\n| models | divided µs | whole "
        "blocks µs |\n|--:|--:|--:|\n");
    for (const size_t count : {2, 4, 8, 16, 32, 64}) {
        std::printf("| %zu |", count);
        for (const bool whole : {false, true}) {
            std::mt19937 random(5);
            std::vector<std::vector<CurvePoint>> curves(count);
            std::vector<Stake> stakes(count);
            uint64_t all = 0;
            for (size_t k = 0; k < count; k++) {
                const Model model(12 + random() % 20, whole, random);
                curves[k] = step_curve(model.problem, 0, UINT64_MAX);
                stakes[k] = {curves[k].front().pages, curves[k].back().pages,
                             std::pow(10, static_cast<double>(random() % 200) / 100), curves[k]};
                all += stakes[k].most_pages;
            }
            std::printf(" %.1f |", time_ns([&] { divide_by_value(all / 2, stakes); }) / 1e3);
        }
        std::printf("\n");
    }
}

}  // namespace

int main() {
    victims();
    curves();
    divisions();
    return 0;
}
