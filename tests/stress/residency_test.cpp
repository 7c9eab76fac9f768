// Sixteen threads make random calls with eight runtimes on one device: they protect, reserve, let guests in, trim, run
// steps, change the budget, and create and destroy runtimes. Meanwhile, the test
// compares bytes, and watches the budget from outside.
#include "residency_worker.h"

namespace stagehand::test {
namespace {

// Everything takes ten times as long under a sanitizer.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kSlowness = 10;
#else
constexpr uint64_t kSlowness = 1;
#endif

class Residency : public testing::TestWithParam<Setting> {};

void operate(Stage& stage, uint64_t seed, uint64_t each) {
    std::vector<std::thread> threads;
    for (size_t t = 0; t < kThreads; t++)
        threads.emplace_back([&, t] {
            Worker worker(stage, seed + t);
            for (uint64_t k = 0; k < each && !stage.failed(); k++) worker.operate();
        });
    for (std::thread& thread : threads) thread.join();
}

// What each runtime holds and may hold, in pages.
std::string standings(Stage& stage) {
    std::string text;
    for (const Party& party : stage.parties) {
        const sh_runtime_stats stats = party.model->stats();
        text += party.name + " holds " + std::to_string(stats.held_bytes / kPage) + " of a share of " +
                std::to_string(stats.share_bytes / kPage) + ", protected " +
                std::to_string(stats.protected_bytes / kPage) + ", reserved " +
                std::to_string(stats.reserved_bytes / kPage) + ", guest " + std::to_string(stats.guest_bytes / kPage) +
                ", lost " + std::to_string(stats.lost) + "\n";
    }
    return text;
}

// No runtime is in a step or holds a view, so no call has to wait.
void check_at_rest(Stage& stage) {
    const sh_memory_info before = stage.device().memory();
    EXPECT_SUCCEEDS(stage.set_budget(before.budget_bytes / kPage));
    EXPECT_LE(stage.device().memory().used_bytes, before.budget_bytes) << standings(stage);
    for (const host::MemoryStatistics& host : host::all_memory_statistics())
        EXPECT_LE(host.peak_bytes, kMostPages * kPage);
}

// All memory was given back, and the whole budget is available again.
void check_at_the_end(Stage& stage) {
    for (sh_scope* scope : stage.scopes) EXPECT_SUCCEEDS(sh_scope_end(scope));
    const sh_memory_info memory = stage.device().memory();
    EXPECT_EQ(memory.reserved_bytes, 0u);
    EXPECT_EQ(memory.guest_bytes, 0u);
    EXPECT_EQ(memory.protected_bytes, 0u);
    EXPECT_SUCCEEDS(stage.set_budget(kMostPages));
    for (Party& party : stage.parties) {
        EXPECT_SUCCEEDS(party.model->schedule(forward(kOrdered)));
        EXPECT_SUCCEEDS(sh_step_begin(party.model->runtime(), nullptr));
        EXPECT_SUCCEEDS(sh_step_end(party.model->runtime()));
    }
    for (Party& party : stage.parties) party.model.reset();
    EXPECT_EQ(stage.device().memory().used_bytes, 0u);
    // All of the budget that is there: growth leaves a reserve on the device.
    EXPECT_LE(stage.device().memory().headroom_bytes, stage.device().memory().budget_bytes);
    EXPECT_GE(stage.device().memory().headroom_bytes, stage.device().memory().budget_bytes / 16 * 15);
}

TEST_P(Residency, is_what_the_words_say) {
    const Setting setting = GetParam();
    {
        Stage stage(setting);
        for (uint64_t round = 0; round < kRounds && !stage.failed(); round++) {
            operate(stage, (setting.seed * kRounds + round) * kThreads,
                    scaled(setting.operations) / kSlowness / kThreads / kRounds + 1);
            check_at_rest(stage);
        }
        check_at_the_end(stage);
    }
    EXPECT_TRUE(host::all_memory_statistics().empty());
}

// A million operations in all, but under a sanitizer.
INSTANTIATE_TEST_SUITE_P(Devices, Residency, testing::Values(Setting{"host", 1, 100'000}, Setting{"sim", 2, 900'000}),
                         [](const auto& info) { return std::string(info.param.device); });

}  // namespace
}  // namespace stagehand::test
