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
    SUCCEEDS(sh_spiller_open_telemetry(spiller_, path.c_str()));
    for (uint64_t step : {12, 13}) {
        SUCCEEDS(sh_spiller_begin_step(spiller_, step));
        std::vector<Saved> all;
        for (uint64_t seed = 0; seed < 3; seed++) all.push_back(save(seed, 0, kTensor, 5 << 20));
        collect(SH_COLLECT_ALL);
        for (const size_t i : {1, 0}) restore(all[i].ticket);
        SUCCEEDS(sh_spiller_end_step(spiller_));
        for (Saved& saved : all) SUCCEEDS(sh_ticket_release(spiller_, saved.ticket));
    }
    SUCCEEDS(sh_spiller_open_telemetry(spiller_, nullptr));
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

TEST_F(SpillerTest, TheLineHasThePlanThatTheEngineCarriesOut) {
    create(keeping(kTensor));
    const std::string path = testing::TempDir() + "spill-plans." + std::to_string(getpid()) + ".jsonl";
    SUCCEEDS(sh_spiller_open_telemetry(spiller_, path.c_str()));
    sh_activation_plan plan = SH_ACTIVATION_PLAN_INIT;
    plan.meets_target = 1;
    plan.kept_bytes = 1000;
    plan.spilled_bytes = 200;
    plan.recomputed_bytes = 30;
    plan.step_ns = 5'000'000;
    plan.recompute_ns = 500'000;
    plan.least_step_ns = 4'000'000;
    plan.peak_bytes = 3 << 20;
    plan.plain_peak_bytes = 6 << 20;
    const auto step = [&](uint64_t number) {
        SUCCEEDS(sh_spiller_begin_step(spiller_, number));
        SUCCEEDS(sh_spiller_end_step(spiller_));
    };
    step(1);
    SUCCEEDS(sh_spiller_note_plan(spiller_, &plan));
    step(2);
    plan.least_step_ns = UINT64_MAX;
    plan.meets_target = 0;
    SUCCEEDS(sh_spiller_note_plan(spiller_, &plan));
    step(3);
    SUCCEEDS(sh_spiller_note_plan(spiller_, nullptr));
    step(4);
    plan.struct_size = 4;
    EXPECT_EQ(sh_spiller_note_plan(spiller_, &plan), SH_ERROR_INVALID_STRUCT);
    EXPECT_NE(why().find("plan.struct_size is 4"), std::string::npos) << why();
    SUCCEEDS(sh_spiller_open_telemetry(spiller_, nullptr));
    std::ifstream file(path);
    EXPECT_EQ(unlink(path.c_str()), 0);
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    ASSERT_EQ(lines.size(), 4u);
    EXPECT_FALSE(lines[0].contains("plan"));
    const nlohmann::json expected = {{"kept_bytes", 1000}, {"spilled_bytes", 200}, {"recomputed_bytes", 30},
                                     {"step_ms", 5.0},     {"recompute_ms", 0.5},  {"least_step_ms", 4.0},
                                     {"peak_mb", 3.0},     {"plain_peak_mb", 6.0}, {"meets_target", true}};
    EXPECT_EQ(lines[1]["plan"], expected);
    EXPECT_FALSE(lines[2]["plan"].contains("least_step_ms")) << "no choice meets the target";
    EXPECT_EQ(lines[2]["plan"]["meets_target"], false);
    EXPECT_FALSE(lines[3].contains("plan"));
}

}  // namespace
}  // namespace stagehand::test
