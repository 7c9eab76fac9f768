// Compares plans, by the recurrence, with the bound that no plan can beat, and measures the cost of planning. All
// columns except the last are pure computation and are the same on every machine.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <random>
#include <variant>
#include <vector>

#include "policy/bounds.h"
#include "policy/plan.h"

namespace {

using namespace stagehand::policy;

constexpr uint64_t kMiB = uint64_t{1} << 20;

enum class Compute { equal, by_size, random };
const char* name(Compute how) {
    return how == Compute::equal ? "equal" : how == Compute::by_size ? "by size" : "random";
}

struct Setting {
    std::vector<Unit> units;
    uint64_t page_bytes = 8 * kMiB;
    bool backward = false;
    double budget = 0.5;  // as a part of all bytes
    double ratio = 1;     // compute time divided by the time to copy the bytes beyond the budget
    Compute how = Compute::equal;
    uint32_t held = 1;
};

std::vector<Unit> eight_billion(bool whole) {
    std::vector<Unit> units{{1002 * kMiB, whole}};
    units.insert(units.end(), 32, {416 * kMiB, whole});
    units.push_back({1002 * kMiB, whole});
    return units;
}

std::vector<Unit> unequal(uint32_t count) {
    std::mt19937 random(1);
    std::vector<Unit> units;
    for (uint32_t u = 0; u < count; u++) units.push_back({(1 + random() % 60) * kMiB});
    return units;
}

void heading() {
    std::printf(
        "\n| units | order | budget | compute | ÷ copies | step ÷ max(compute, copies) | bound | bytes ÷ (W "
        "− M) | "
        "ring MiB | planned in CPU ms |\n|--:|---|--:|---|--:|--:|--:|--:|--:|--:|\n");
}

void row(const Setting& s) {
    constexpr double link = 55.5;
    uint64_t bytes = 0;
    for (const Unit& unit : s.units) bytes += unit.bytes;
    const uint64_t budget = static_cast<uint64_t>(s.budget * static_cast<double>(bytes)) / s.page_bytes;
    std::vector<Use> trace;
    for (uint32_t u = 0; u < s.units.size(); u++) trace.push_back({u, 0});
    for (size_t u = s.backward ? s.units.size() : 0; u-- > 0;) trace.push_back({static_cast<uint32_t>(u), 0});
    const double over = static_cast<double>((s.backward ? 2 : 1) * (bytes - budget * s.page_bytes));

    std::mt19937 random(2);
    std::vector<double> weight;
    double sum = 0;
    for (const Use& use : trace) {
        weight.push_back(s.how == Compute::equal     ? 1
                         : s.how == Compute::by_size ? static_cast<double>(s.units[use.unit].bytes)
                                                     : 1 + random() % 100);
        sum += weight.back();
    }
    for (size_t j = 0; j < trace.size(); j++)
        trace[j].compute_ns = static_cast<uint64_t>(std::llround(s.ratio * over / link * weight[j] / sum));

    const Problem problem{s.units, trace, s.page_bytes, budget, s.held, link, 0};
    const std::clock_t begin = std::clock();
    const auto answer = make_plan(problem);
    const double ms = static_cast<double>(std::clock() - begin) * 1e3 / CLOCKS_PER_SEC;
    const char* order = s.backward ? "forward, backward" : "forward";
    std::printf("| %zu%s%s | %s | %.0f %% | %s | %.2f | ", s.units.size(), s.units[0].whole ? ", whole" : "",
                s.held > 1 ? ", two held" : "", order, 100 * s.budget, name(s.how), s.ratio);
    if (const Plan* plan = std::get_if<Plan>(&answer)) {
        const double simple = simple_step_ns(problem);
        std::printf("%.4f | %.4f | %.4f | %.0f | %.1f |\n", plan->step_ns / simple, least_step_ns(problem) / simple,
                    static_cast<double>(plan->bytes_per_step) / over,
                    static_cast<double>(plan->ring_pages * s.page_bytes) / static_cast<double>(kMiB), ms);
    } else {
        std::printf("needs %llu pages | | | | %.1f |\n",
                    static_cast<unsigned long long>(std::get<Infeasible>(answer).smallest_budget_pages), ms);
    }
    std::fflush(stdout);
}

}  // namespace

int main() {
    std::printf(
        "Plans by the recurrence, link 55.5 GB/s. Copies: W - M over the link. W is all bytes, M the budget; "
        "twice that\n"
        "forward then backward. Bound: no plan can beat this value, in the same unit.\n");
    for (bool whole : {false, true}) {
        std::printf("\nA model of 8 billion weights (1,002 MiB; 32 of 416 MiB; 1,002 MiB), pages of 8 MiB%s\n",
                    whole ? ", whole blocks only" : "");
        heading();
        for (bool backward : {false, true}) {
            if (whole && backward) continue;
            for (double budget : {0.1, 0.25, 0.5, 0.75, 0.9})
                for (double ratio : {0.25, 1.0, 4.0})
                    for (Compute how : {Compute::equal, Compute::by_size})
                        row({eight_billion(whole), 8 * kMiB, backward, budget, ratio, how});
        }
    }
    std::printf("\n400 unequal blocks of 1 to 60 MiB, pages of 2 MiB\n");
    heading();
    for (bool backward : {false, true})
        for (double budget : {0.25, 0.5, 0.75})
            for (double ratio : {0.25, 1.0, 4.0})
                row({unequal(400), 2 * kMiB, backward, budget, ratio, Compute::random});
    std::printf("\nMany blocks of 1 to 60 MiB, pages of 2 MiB\n");
    heading();
    for (uint32_t count : {1'000u, 10'000u, 100'000u})
        for (uint32_t held : {1u, 2u})
            for (double ratio : {0.25, 1.0, 4.0})
                row({unequal(count), 2 * kMiB, false, 0.5, ratio, Compute::random, held});
    return 0;
}
