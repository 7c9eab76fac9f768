// sh_plan_activations(): the fields of the interface reach the planner, and the effort is bounded.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <stagehand/stagehand.h>

namespace {

std::string message() {
    char text[512] = "";
    sh_last_error(text, sizeof text);
    return text;
}

// Four layers, forward then backward, one second each. Each saves 100 MB and, from it, 50 MB that are cheap.
class Activations : public testing::Test {
protected:
    static constexpr uint64_t kSecond = 1'000'000'000;
    static constexpr uint64_t kMegabyte = 1'000'000;

    Activations() {
        for (uint64_t layer = 0; layer < 4; layer++) {
            sh_activation saved = SH_ACTIVATION_INIT;
            saved.bytes = 100 * kMegabyte;
            saved.produced_ns = layer * kSecond;
            saved.first_use_ns = (7 - layer) * kSecond;
            saved.last_use_ns = saved.first_use_ns + kSecond;
            inputs_[layer] = static_cast<uint32_t>(all_.size());
            all_.push_back(saved);
            saved.bytes = 50 * kMegabyte;
            saved.flags = SH_ACTIVATION_CHEAP;
            saved.recompute_ns = kSecond / 100;
            saved.inputs = &inputs_[layer];
            saved.input_count = 1;
            all_.push_back(saved);
        }
        step_.activations = all_.data();
        step_.activation_count = all_.size();
        step_.forward_end_ns = 4 * kSecond;
        step_.end_ns = 8 * kSecond;
        step_.to_host_bytes_per_second = step_.to_device_bytes_per_second = 100 * kMegabyte;
        step_.target_peak_bytes = UINT64_MAX;
    }
    sh_status plan() {
        fates_.assign(all_.size(), 77);
        return sh_plan_activations(&step_, fates_.data(), &plan_);
    }

    uint32_t inputs_[4] = {};
    std::vector<sh_activation> all_;
    sh_training_step step_ = SH_TRAINING_STEP_INIT;
    std::vector<uint32_t> fates_;
    sh_activation_plan plan_ = sh_sized<sh_activation_plan>();
};

TEST_F(Activations, CheapStoragesAreComputedAgainAndOthersLeave) {
    step_.target_peak_bytes = 350 * kMegabyte;
    ASSERT_EQ(plan(), SH_OK) << message();
    EXPECT_EQ(plan_.meets_target, 1u);
    EXPECT_LE(plan_.peak_bytes, 350 * kMegabyte);
    EXPECT_LE(plan_.step_ns, 8 * kSecond + kSecond / 10) << "the link has time for what leaves";
    EXPECT_GT(plan_.spilled_bytes, 0u);
    EXPECT_EQ(plan_.kept_bytes + plan_.spilled_bytes + plan_.recomputed_bytes, 600 * kMegabyte);
    EXPECT_LE(plan_.least_step_ns, plan_.step_ns);
    EXPECT_GE(plan_.least_step_ns, 8 * kSecond);
}

TEST_F(Activations, WhereNothingCanBeDoneEverythingStays) {
    for (sh_activation& activation : all_) activation.flags = 0;
    step_.to_device_bytes_per_second = 0;
    for (const uint64_t target : {uint64_t(1), uint64_t(599) * kMegabyte}) {
        step_.target_peak_bytes = target;
        ASSERT_EQ(plan(), SH_OK) << message();
        EXPECT_EQ(plan_.meets_target, 0u);
        EXPECT_EQ(plan_.kept_bytes, 600 * kMegabyte);
    }
    step_.activation_count = 0;
    ASSERT_EQ(plan(), SH_OK) << message();
    EXPECT_EQ(plan_.peak_bytes, 0u);
}

TEST_F(Activations, TheLowestPeakInATime) {
    step_.target_peak_bytes = 0;
    step_.target_step_ns = 9 * kSecond;
    ASSERT_EQ(plan(), SH_OK) << message();
    EXPECT_EQ(plan_.meets_target, 1u);
    EXPECT_LE(plan_.step_ns, 9 * kSecond);
    EXPECT_LT(plan_.peak_bytes, 600 * kMegabyte);
    EXPECT_LE(plan_.least_peak_bytes, plan_.peak_bytes);
}

TEST_F(Activations, OtherMemoryAndOtherCopiesCount) {
    sh_memory_point others[2] = {SH_MEMORY_POINT_INIT, SH_MEMORY_POINT_INIT};
    others[0].bytes = 300 * kMegabyte;
    others[1].ns = 4 * kSecond;
    others[1].bytes = 500 * kMegabyte;
    step_.others = others;
    step_.other_count = 2;
    ASSERT_EQ(plan(), SH_OK) << message();
    EXPECT_GE(plan_.plain_peak_bytes, 1000 * kMegabyte);
    step_.other_to_host_bytes_per_second = step_.to_host_bytes_per_second;
    step_.target_peak_bytes = 950 * kMegabyte;
    ASSERT_EQ(plan(), SH_OK) << message();
    EXPECT_EQ(plan_.spilled_bytes, 0u) << "others take the whole link";
}

// Many storages, each used shortly after it is saved. Also, lists of inputs that are one and the same, and would be
// read for hours.
TEST_F(Activations, TheEffortIsBounded) {
    std::vector<sh_activation> many(60'000, sh_activation(SH_ACTIVATION_INIT));
    for (uint64_t i = 0; i < many.size(); i++) {
        many[i].bytes = 4096;
        many[i].produced_ns = i * 1000;
        many[i].first_use_ns = many[i].last_use_ns = (i + 1 + i % 7) * 1000;
    }
    all_ = many;
    step_.activations = all_.data();
    step_.activation_count = all_.size();
    step_.forward_end_ns = step_.end_ns = 70'000'000;
    step_.target_peak_bytes = 4096 * 4;
    ASSERT_EQ(plan(), SH_OK) << message();
    EXPECT_EQ(plan_.meets_target, 1u);
    EXPECT_EQ(plan_.plain_peak_bytes, 5 * 4096u);
    std::vector<uint32_t> everything;
    for (uint32_t i = 0; i < all_.size(); i++) everything.push_back(i);
    for (size_t i = 1; i < all_.size(); i++) {
        all_[i].inputs = everything.data();
        all_[i].input_count = i;
    }
    EXPECT_EQ(plan(), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(message().find("the activations have more than 16777216 inputs together"), std::string::npos)
        << message();
}

TEST_F(Activations, ASimulationTellsTheMemoryOverTheStep) {
    std::vector<sh_memory_point> points(64, sh_memory_point(SH_MEMORY_POINT_INIT));
    uint64_t count = 0;
    const auto simulate = [&](const uint32_t* fates) {
        return sh_simulate_activations(&step_, fates, &plan_, points.data(), points.size(), &count);
    };
    step_.target_peak_bytes = 0;
    ASSERT_EQ(simulate(nullptr), SH_OK) << message();
    ASSERT_EQ(count, 8u);
    for (uint64_t layer = 0; layer < 4; layer++) {
        EXPECT_EQ(points[layer].ns, layer * kSecond);
        EXPECT_EQ(points[layer].bytes, (layer + 1) * 150 * kMegabyte);
        EXPECT_EQ(points[4 + layer].ns, (5 + layer) * kSecond);
        EXPECT_EQ(points[4 + layer].bytes, (3 - layer) * 150 * kMegabyte);
    }
    EXPECT_EQ(plan_.peak_bytes, 600 * kMegabyte);
    EXPECT_EQ(plan_.step_ns, 8 * kSecond);
    EXPECT_EQ(plan_.meets_target, 1u);
    EXPECT_EQ(plan_.least_step_ns + plan_.least_peak_bytes, 0u);

    // The simulation of a plan gives what the plan tells.
    step_.target_peak_bytes = 350 * kMegabyte;
    ASSERT_EQ(plan(), SH_OK) << message();
    const sh_activation_plan planned = plan_;
    ASSERT_EQ(simulate(fates_.data()), SH_OK) << message();
    EXPECT_EQ(plan_.step_ns, planned.step_ns);
    EXPECT_EQ(plan_.peak_bytes, planned.peak_bytes);
    EXPECT_EQ(plan_.spilled_bytes, planned.spilled_bytes);
    EXPECT_EQ(plan_.plain_peak_bytes, 600 * kMegabyte);
    uint64_t highest = 0;
    for (uint64_t i = 0; i < count; i++) highest = std::max(highest, points[i].bytes);
    EXPECT_EQ(highest, plan_.peak_bytes);

    // Fewer points than there are.
    const uint64_t all = count;
    points[1].bytes = 77;
    ASSERT_EQ(sh_simulate_activations(&step_, fates_.data(), nullptr, points.data(), 1, &count), SH_OK) << message();
    EXPECT_EQ(count, all);
    EXPECT_EQ(points[1].bytes, 77u);
    EXPECT_EQ(sh_simulate_activations(&step_, fates_.data(), nullptr, nullptr, 0, nullptr), SH_OK) << message();
}

}  // namespace
