// The line of JSON that a spiller writes for each step.
#include <unistd.h>

#include <fstream>

#include <nlohmann/json.hpp>

#include "spiller_fixture.h"

namespace stagehand::test {
namespace {

TEST_F(SpillerTest, WritesALineForEachStep) {
    create(keeping(kTensor));
    const std::string path = testing::TempDir() + "spill-steps." + std::to_string(getpid()) + ".jsonl";
    sh_scope* lines = nullptr;
    SUCCEEDS(sh_telemetry_start(nullptr, spiller_, path.c_str(), &lines));
    for (uint64_t step : {12, 13}) {
        SUCCEEDS(sh_spiller_begin_step(spiller_, step));
        std::vector<Saved> all;
        for (uint64_t seed = 0; seed < 3; seed++) all.push_back(save(seed, 0, kTensor, 5 << 20));
        collect(SH_COLLECT_ALL);
        for (const size_t i : {1, 0}) restore(all[i].ticket);
        SUCCEEDS(sh_spiller_end_step(spiller_));
        for (Saved& saved : all) SUCCEEDS(sh_ticket_release(spiller_, saved.ticket));
    }
    SUCCEEDS(sh_scope_end(lines));
    std::ifstream file(path);
    EXPECT_EQ(unlink(path.c_str()), 0);
    std::string line;
    for (uint64_t step : {12, 13}) {
        ASSERT_TRUE(std::getline(file, line));
        const nlohmann::json json = nlohmann::json::parse(line);
        EXPECT_EQ(json["step"], step);
        EXPECT_EQ(json["activations_saved"], 3);
        EXPECT_EQ(json["activations_kept"], 1);
        EXPECT_EQ(json["activations_spilled"], 2);
        EXPECT_EQ(json["activations_restored"], 2);
        EXPECT_EQ(json["spill_bytes"], 2 * kTensor);
        EXPECT_EQ(json["restore_bytes"], 2 * kTensor);
        EXPECT_EQ(json["vram_peak_mb"], 5.0);
        for (const char* field : {"stall_time_ms", "stall_count", "pool_hits", "pool_misses"})
            EXPECT_TRUE(json.contains(field)) << field;
    }
    EXPECT_FALSE(std::getline(file, line));
}

}  // namespace
}  // namespace stagehand::test
