// Misses of policies for the experts of a mixture that share slots on the device: the library's own, LRU, LFU and
// Landlord, beside Belady's, which knows what comes. All columns except the last are the same on every machine.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <optional>
#include <random>

#include "../tests/unit/policy/member_traces.h"

namespace {

using namespace stagehand::policy;
using namespace stagehand::policy::test;

constexpr MixtureShape kShape{48, 128, 8};
constexpr uint32_t kSteps = 600, kFirstSteps = 150;

void row(const Calls& calls, Routing routing, uint32_t percent) {
    const uint32_t slots = calls.shape.members() * percent / 100;
    Lru lru(calls);
    Lfu lfu(calls);
    LandlordRival landlord(calls);
    Belady belady(calls);
    MemberCache cache(calls.shape.groups, calls.shape.width, slots);
    const double of_lru = misses_of(lru, calls, slots, kFirstSteps), of_lfu = misses_of(lfu, calls, slots, kFirstSteps),
                 of_landlord = misses_of(landlord, calls, slots, kFirstSteps),
                 least = misses_of(belady, calls, slots, kFirstSteps);
    const std::clock_t begin = std::clock();
    const double own = misses_of(cache, calls, kFirstSteps);
    const double us = static_cast<double>(std::clock() - begin) * 1e6 / CLOCKS_PER_SEC;
    std::printf("| %s | %u %% | %.1f | %.1f | %.1f | %.1f | %.1f | %.3f | %.2f | %.2f |\n", name(routing), percent, own,
                of_lru, of_lfu, of_landlord, least, own / std::min({of_lru, of_lfu, of_landlord}), own / least,
                us / static_cast<double>(calls.used.size()));
    std::fflush(stdout);
}

// Before each call, the engine guesses its members. A guess is right with this probability, else it names any member.
void guesses_row(const Calls& calls, Routing routing, uint32_t percent, double right) {
    MemberCache cache(calls.shape.groups, calls.shape.width, calls.shape.members() * percent / 100);
    std::mt19937 random(1);
    std::bernoulli_distribution is_right(right);
    uint64_t misses = 0, ahead = 0;
    for (size_t call = 0; call < calls.used.size(); call++) {
        const auto group = static_cast<uint32_t>(call % calls.shape.groups);
        const bool counts = call >= kFirstSteps * calls.shape.groups;
        for (const uint32_t member : calls.used[call]) {
            const auto any = static_cast<uint32_t>(group * calls.shape.width + random() % calls.shape.width);
            const auto place = right > 0 ? cache.guess(is_right(random) ? member : any, right) : std::nullopt;
            ahead += counts && place && !place->hit;
        }
        cache.begin_call(group, calls.used[call]);
        for (const uint32_t member : calls.used[call]) misses += !cache.use(member).value().hit && counts;
        for (const uint32_t member : calls.used[call]) cache.release(member);
    }
    const auto steps = static_cast<double>(calls.steps() - kFirstSteps);
    std::printf("| %s | %u %% | %.1f | %.1f | %.1f |\n", name(routing), percent, right,
                static_cast<double>(misses) / steps, static_cast<double>(ahead) / steps);
    std::fflush(stdout);
}

}  // namespace

int main() {
    std::printf(
        "Misses a step. %u groups of %u members, of which a token uses %u. Best: the least misses of LRU, LFU and "
        "Landlord.\n\n| routing | slots | own | LRU | LFU | Landlord | Belady | own ÷ best | own ÷ Belady | own, CPU "
        "µs a call |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        kShape.groups, kShape.width, kShape.used);
    for (const Routing routing : kRoutings) {
        const Calls calls = Router(routing, kShape, 7).calls(kSteps);
        for (const uint32_t percent : {25u, 50u, 75u}) row(calls, routing, percent);
    }
    std::printf(
        "\nMembers of the next call are guessed while the call before it computes. Loads a step.\n\n| routing | slots "
        "| "
        "guesses that are right | misses | loaded by guesses |\n|---|--:|--:|--:|--:|\n");
    for (const Routing routing : {Routing::zipf, Routing::sticky_zipf}) {
        const Calls calls = Router(routing, kShape, 7).calls(kSteps);
        for (const double right : {0.0, 0.2, 0.5, 0.8, 1.0}) guesses_row(calls, routing, 50, right);
    }
    return 0;
}
