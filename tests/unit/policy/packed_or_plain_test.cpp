// Which weights stay packed: the best amount, against a search over all amounts.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "policy/packed_or_plain.h"

namespace stagehand::policy::test {
namespace {

constexpr double kGb = 1e9;

// The step if these weights stay packed and plain ones have the rest of the memory.
double step_ns(const PackedModel& model, double kept) {
    const double part = model.packed_bytes / model.packable_bytes;
    double plain = model.memory_bytes - part * kept, unpackable = model.bytes - model.packable_bytes;
    const double whole = std::min(plain, unpackable);  // that cannot be packed and stays
    unpackable -= whole;
    plain -= whole;
    const double streamed = std::max(0.0, model.packable_bytes - kept - plain);
    return std::max(model.compute_ns + (kept + streamed) * model.unpack_ns_per_byte,
                    (unpackable + part * streamed) / model.link_bytes_per_ns);
}

TEST(KeptWeights, AreTheBestAmount) {
    std::mt19937_64 random(5);
    const auto between = [&](double low, double high) {
        return low + (high - low) * static_cast<double>(random() % 10'000) / 1e4;
    };
    int kept_some = 0;
    for (int round = 0; round < 400; round++) {
        PackedModel model;
        model.bytes = 16 * kGb;
        model.packable_bytes = between(4, 16) * kGb;
        model.packed_bytes = model.packable_bytes * between(0.4, 0.95);
        model.memory_bytes = between(0.5, 15.5) * kGb;
        model.compute_ns = between(0, 80) * 1e6;
        model.link_bytes_per_ns = between(10, 100);
        model.unpack_ns_per_byte = 1 / between(50, 1500);
        const double streaming_ns = between(1, 400) * 1e6;
        const KeptWeights kept = choose_kept_weights(model, streaming_ns);
        const double part = model.packed_bytes / model.packable_bytes;
        ASSERT_LE(kept.bytes * part, model.memory_bytes * 1.000001);
        ASSERT_LE(kept.bytes, model.packable_bytes);
        double best = 1e300;
        for (int i = 0; i <= 1000; i++) {
            const double some = model.packable_bytes * i / 1000;
            if (some * part > model.memory_bytes || model.memory_bytes - some * part + some > model.bytes) break;
            best = std::min(best, step_ns(model, some));
        }
        if (kept.bytes > 0) {
            kept_some++;
            ASSERT_NEAR(kept.step_ns, step_ns(model, kept.bytes), 1);
            ASSERT_LE(kept.step_ns, best * 1.000001);
            ASSERT_LT(kept.step_ns, streaming_ns);
            ASSERT_GE(kept.step_ns * 1.000001, least_packed_step_ns(model));
        } else {
            ASSERT_GE(best * 1.01, 0.97 * streaming_ns);
        }
    }
    EXPECT_GT(kept_some, 100);
}

}  // namespace
}  // namespace stagehand::policy::test
