// Several threads change contents at random and in every possible way, on one runtime or two, while views are held,
// orders change and memory is short. Each view and each source is compared with a plain record of its expected bytes.
// Each call must return with a status that its comment allows. STAGEHAND_STRESS_SEED is the seed of the first round.
// STAGEHAND_STRESS_SECONDS sets how long rounds go on.
#include <chrono>
#include <cstdlib>

#include "contents_model.h"
#include "scale.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kRounds = 10;

uint64_t number_in(const char* variable, uint64_t otherwise) {
    const char* const text = std::getenv(variable);
    return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}

constexpr Setting kSettings[] = {
    {.name = "plain", .operations = 500},
    {.name = "jitter", .options = ";jitter_us=300;jitter_seed=SEED", .operations = 120, .host_only = true},
    {.name = "late", .options = ";jitter_us=6000;jitter_seed=SEED", .operations = 20, .host_only = true},
    {.name = "slow_link", .options = ";bandwidth=40MB/s;latency=50us", .operations = 100, .host_only = true},
    {.name = "delayed_calls", .backend = "fault", .options = ";delay_us=200;delay_seed=SEED", .operations = 100},
    {.name = "delayed_calls_and_jitter",
     .backend = "fault",
     .options = ";delay_us=300;delay_seed=SEED;jitter_us=1000;jitter_seed=SEED",
     .operations = 50,
     .host_only = true},
    {.name = "failing_calls", .backend = "fault", .operations = 300, .faulty = true},
    {.name = "failing_and_delayed_calls",
     .backend = "fault",
     .options = ";delay_us=100;delay_seed=SEED",
     .operations = 120,
     .faulty = true},
    {.name = "helped",
     .options = ";jitter_us=200;jitter_seed=SEED",
     .operations = 150,
     .host_only = true,
     .helped = true},
    {.name = "helped_and_failing_and_delayed_calls",
     .backend = "fault",
     .options = ";delay_us=60;delay_seed=SEED",
     .operations = 120,
     .faulty = true,
     .host_only = true,
     .helped = true},
};

class ContentsStress : public testing::TestWithParam<Setting> {
protected:
    void SetUp() override {
        if (GetParam().host_only && !on_host_backend()) GTEST_SKIP() << "only the host backend can be slow";
        if (*GetParam().backend && !std::getenv("STAGEHAND_BACKEND_PATH"))
            GTEST_SKIP() << "STAGEHAND_BACKEND_PATH does not lead to the fault backend";
        if (GetParam().helped && !has_helpers()) GTEST_SKIP() << "the build has no helpers";
    }
};

TEST_P(ContentsStress, every_byte_is_the_newest) {
    using Clock = std::chrono::steady_clock;
    const uint64_t first = number_in("STAGEHAND_STRESS_SEED", 1), seconds = number_in("STAGEHAND_STRESS_SECONDS", 0);
    const auto share = std::chrono::duration<double>(
        static_cast<double>(seconds) / std::max(1, testing::UnitTest::GetInstance()->test_to_run_count()));
    const Clock::time_point began = Clock::now();
    std::string last;
    for (uint64_t k = 0; seconds ? Clock::now() - began < share : k < scaled(kRounds); k++) {
        Round round(GetParam(), first + k);
        round.run();
        last = round.summary();
        if (HasFailure()) break;
    }
    std::printf("%s: the last round: %s\n", GetParam().name, last.c_str());
}

INSTANTIATE_TEST_SUITE_P(Settings, ContentsStress, testing::ValuesIn(kSettings),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace stagehand::test
