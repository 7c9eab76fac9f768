// Random delays before every copy, event and launch never change a result.
#include <random>

#include "engine.h"
#include "scale.h"

namespace stagehand::test {
namespace {

struct Case {
    Origin origin;
    bool by_calls;  // the calls into the device are delayed as well, not only what the streams do
};

class Delays : public testing::TestWithParam<Case> {};

TEST_P(Delays, a_thousand_steps) {
    DeviceSettings settings{.budget_bytes = 9 * kPage};
    settings.options = "capacity=64MiB;staging_piece=8KiB;jitter_us=40;jitter_seed=11";
    if (GetParam().by_calls) {
        if (!std::getenv("STAGEHAND_BACKEND_PATH"))
            GTEST_SKIP() << "STAGEHAND_BACKEND_PATH does not lead to the fault backend";
        settings.name = "fault";
        settings.options = (on_host_backend() ? settings.options + ";" : "") + "wrap=" + device_under_test() +
                           ";delay_us=30;delay_seed=5";
    }
    TestDevice device(settings);
    std::vector<BlockSpec> specs = equal_blocks(7, 3 * kPage - 100, GetParam().origin);
    specs[3].bytes = 5 * kPage;
    specs[5].bytes = 10;
    const bool writable = GetParam().origin == Origin::pinned || GetParam().origin == Origin::pageable;
    if (writable) specs[4].flags = specs[6].flags = SH_BLOCK_MUTABLE;
    Model model(device, specs);
    SUCCEEDS(model.schedule(forward_backward(7)));
    const sh_stream streams[] = {device.stream(), device.stream()};
    std::mt19937 random(11);
    uint64_t version = 0;
    const uint64_t steps = scaled(GetParam().by_calls ? 200 : 1000);
    for (uint64_t k = 0; k < steps; k++) {
        SUCCEEDS(sh_step_begin(model.runtime()));
        for (const size_t i : forward_backward(7)) {
            const bool changes = writable && (i == 4 || i == 6);
            const sh_stream stream = changes ? SH_STREAM_HOST : streams[(k + i) % 2];
            sh_view view = SH_VIEW_INIT;
            SUCCEEDS(sh_acquire(model.runtime(), model.id(i), stream, 0, &view));
            // Uses are delayed if the streams have no delays of their own.
            SUCCEEDS(model.compare(i, view, stream, on_host_backend() ? 0 : static_cast<int64_t>(random() % 100'000)));
            if (changes && k % 3 == 0) {
                SUCCEEDS(model.overwrite(i, view, ++version));
            }
            SUCCEEDS(sh_release(model.runtime(), model.id(i), stream));
        }
        SUCCEEDS(sh_step_end(model.runtime()));
    }
    device.synchronize();
    SUCCEEDS(sh_write_back_all(model.runtime()));
    if (writable) {
        for (const size_t i : {size_t(4), size_t(6)}) EXPECT_EQ(model.source(i).read(), *model.truth(i));
    }
    EXPECT_EQ(model.compared(), steps * 14);
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

INSTANTIATE_TEST_SUITE_P(Sources, Delays,
                         testing::Values(Case{Origin::pinned, false}, Case{Origin::pageable, false},
                                         Case{Origin::mapped, false}, Case{Origin::file, false},
                                         Case{Origin::fill, false}, Case{Origin::pinned, true},
                                         Case{Origin::pageable, true}),
                         [](const auto& info) {
                             return name_of(info.param.origin) + (info.param.by_calls ? "_calls" : "");
                         });

}  // namespace
}  // namespace stagehand::test
