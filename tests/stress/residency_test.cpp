// Sixteen threads make random calls with eight runtimes on one device: they protect, reserve, let guests in, trim, run
// steps, change the budget, and create and destroy runtimes. Meanwhile, the test compares bytes, and watches the budget
// from outside. Between rounds it sees that what was promised is kept.
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

// Reserved memory and protected contents stay when the budget falls, and other blocks and runtimes want the memory.
// Returns the number of runtimes that showed it.
size_t check_promises(Stage& stage) {
    size_t shown = 0;
    const auto use = [](Party& party, size_t i) {
        auto view = sh_sized<sh_view>();
        const sh_status status = sh_acquire(party.model->runtime(), party.model->id(i), SH_STREAM_HOST, 0, &view);
        if (status == SH_OK) {
            EXPECT_SUCCEEDS(sh_release(party.model->runtime(), party.model->id(i), SH_STREAM_HOST));
        } else {
            EXPECT_TRUE(status == SH_ERROR_BUDGET || status == SH_ERROR_BUSY || status == SH_ERROR_HELD) << why();
        }
        return status == SH_OK;
    };
    const auto step = [&](Party& party) {
        if (sh_step_begin(party.model->runtime(), nullptr) != SH_OK) return;  // there is no room
        for (size_t i = 0; i < kBlocks; i++) use(party, i);
        EXPECT_SUCCEEDS(sh_step_end(party.model->runtime()));
    };
    for (Party& party : stage.parties) {
        Model& model = *party.model;
        const sh_block outside = model.id(kOrdered);
        sh_scope *reservation = nullptr, *protection = nullptr;
        if (sh_reserve(model.runtime(), 0, SH_PRIORITY_PRIMARY, &reservation) != SH_OK) continue;
        EXPECT_SUCCEEDS(sh_protect_blocks(model.runtime(), &outside, 1, &protection));
        const bool used = use(party, kOrdered);
        const uint64_t budget = stage.device().memory().budget_bytes;
        const sh_status lowered = stage.set_budget(kLeastPages);
        for (Party& other : stage.parties) step(other);
        uint64_t taken = model.stats().reserved_bytes;
        for (Party& other : stage.parties)
            if (&other != &party) taken += other.model->stats().held_bytes;
        EXPECT_LE(taken, stage.device().memory().budget_bytes) << standings(stage);
        if (used) {
            const sh_block_state state = model.state(kOrdered);
            EXPECT_EQ(state.present_bytes, state.bytes) << party.name;
            shown++;
        }
        EXPECT_SUCCEEDS(sh_scope_end(protection));
        EXPECT_SUCCEEDS(sh_scope_end(reservation));
        if (lowered == SH_OK) {
            EXPECT_SUCCEEDS(stage.set_budget(budget / kPage));
        }
    }
    return shown;
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
        size_t promises = 0;
        for (uint64_t round = 0; round < kRounds && !stage.failed(); round++) {
            operate(stage, (setting.seed * kRounds + round) * kThreads,
                    scaled(setting.operations) / kSlowness / kThreads / kRounds + 1);
            check_at_rest(stage);
            promises += check_promises(stage);
        }
        EXPECT_GT(promises, 0u);
        check_at_the_end(stage);
    }
    EXPECT_TRUE(host::all_memory_statistics().empty());
}

// A million operations in all, but under a sanitizer.
INSTANTIATE_TEST_SUITE_P(Devices, Residency, testing::Values(Setting{"host", 1, 100'000}, Setting{"sim", 2, 900'000}),
                         [](const auto& info) { return std::string(info.param.device); });

}  // namespace
}  // namespace stagehand::test
