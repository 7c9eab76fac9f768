// Write-backs that a helper has a part in, and a failure at every single call into the helper or into the device. No
// change of the engine is lost.
#include "failing_helpers.h"

namespace stagehand::test {
namespace {

class HelpedChangeFaults : public FailingHelpers {
protected:
    void SetUp() override {
        FailingHelpers::SetUp();
        if (IsSkipped()) return;
        least_ = transfer::Bond::least_bytes();
        transfer::Bond::set_least_bytes(16 << 10);
        core::Helpers::set_quiet_ns(0);
    }
    void TearDown() override {
        if (!least_) return;
        transfer::Bond::set_least_bytes(least_);
        core::Helpers::set_quiet_ns(100'000'000);
    }

    static constexpr size_t kBlocks = 4;

    // Calls until a call succeeds. A helper's failure may be told of at any call, because loads are helped, too.
    template <class Call>
    static sh_status attempt(Call&& call) {
        sh_status status = SH_OK;
        for (int k = 0; k < 6; k++) {
            status = call();
            if (status >= 0) return SH_OK;
            write_backs_failed_ = write_backs_failed_ || tells_of_a_write_back();
        }
        return status;
    }
    static bool tells_of_a_write_back() {
        return std::string(why()).find("cannot be written back") != std::string::npos;
    }

    static sh_status change(Model& model, size_t i, uint64_t version, sh_stream stream) {
        sh_view view = SH_VIEW_INIT;
        const sh_status acquired = attempt([&] { return sh_acquire(model.runtime(), model.id(i), stream, 0, &view); });
        if (acquired != SH_OK) return acquired;
        EXPECT_EQ(attempt([&] { return model.overwrite(i, view, version, stream); }), SH_OK) << why();
        return attempt([&] {
            const sh_status status = sh_release(model.runtime(), model.id(i), stream);
            return model.state(i).held ? status : SH_OK;
        });
    }

    // Steps in which the engine changes all blocks, each twice in a row, and their write-back. Ends at the first
    // failure.
    static sh_status change_all(Model& model, TestDevice& device, sh_stream stream, uint64_t steps) {
        for (uint64_t step = 0; step < steps; step++)
            for (size_t k = 0; k < 2 * kBlocks; k++) {
                const size_t i = k / 2;
                const sh_status status = change(model, i, 2 * step + k % 2 + 1, i % 2 ? stream : SH_STREAM_HOST);
                if (status != SH_OK) return status;
            }
        EXPECT_EQ(attempt([&] { return sh_stream_synchronize(device.get(), stream); }), SH_OK) << why();
        return attempt([&] { return sh_write_back(model.runtime(), model.ids().data(), kBlocks); });
    }

    // `kStuck`: the helper may fail so that nobody knows what it still writes. The write-backs fail then.
    template <bool kStuck>
    static void run(const std::string& device_plan, const std::string& helper_plan, bool, Result* out) {
        Pair pair;
        // The copies of the helper begin late, so that it may be at work when the engine changes a block again. After
        // one step its speed is known, and it is not asked any more.
        if (!pair.open_both(7 * kMiB, device_plan, helper_plan + (kStuck ? ";jitter_us=10000;jitter_seed=3" : ""))) {
            out->failures = 1;
            return;
        }
        std::unique_ptr<Model> model;
        for (int k = 0; k < 4 && !model; k++) {
            try {
                model = std::make_unique<Model>(*pair.device,
                                                equal_blocks(kBlocks, 5 * kMiB / 2, Origin::pinned, SH_BLOCK_MUTABLE));
            } catch (const std::exception& error) {
                EXPECT_FALSE(device_plan.empty()) << error.what();
            }
        }
        ASSERT_TRUE(model);
        sh_stream stream = 0;
        EXPECT_EQ(attempt([&] { return model->schedule(forward(kBlocks)); }), SH_OK) << why();
        EXPECT_EQ(attempt([&] { return sh_stream_create(pair.device->get(), &stream); }), SH_OK) << why();
        write_backs_failed_ = false;
        const sh_status written = change_all(*model, *pair.device, stream, kStuck ? 1 : 2);
        host::wait_for_all_work();  // of a helper that nobody can wait for
        out->helped = model->stats().helped_bytes;
        out->failures = failures();
        if (kStuck && written != SH_OK) {
            EXPECT_TRUE(tells_of_a_write_back()) << why();
        } else {
            EXPECT_TRUE(kStuck || helper_plan.empty() || !write_backs_failed_) << "the own link could have written";
            EXPECT_EQ(written, SH_OK) << why();
            for (size_t i = 0; i < kBlocks; i++) EXPECT_EQ(model->source(i).read(), *model->truth(i)) << "block " << i;
        }
        model->destroy();
        if (!helper_plan.empty()) {
            EXPECT_EQ(pair.device->memory().used_bytes, 0u);
        }
        model.reset();
        pair = Pair();
        EXPECT_TRUE(host::all_memory_statistics().empty()) << "a device is still open";
    }

private:
    static inline bool write_backs_failed_ = false;
    uint64_t least_ = 0;
};

TEST_F(HelpedChangeFaults, one_call_of_the_helper_fails) { every_call(run<false>, "1", true, 2); }
TEST_F(HelpedChangeFaults, the_helper_is_lost_from_one_call_on) {
    every_call(run<false>, "0;fail_status=" + std::to_string(SH_ERROR_DEVICE_LOST), true, 3);
}
TEST_F(HelpedChangeFaults, nothing_is_known_of_the_helper_from_one_call_on) {
    if (kOneThreadOnly) GTEST_SKIP() << "the helper may still read a source for a load that is given up";
    every_call(run<true>, "0", true, 2);
}
TEST_F(HelpedChangeFaults, the_helper_goes_in_a_copy) { every_copy(run<false>, "copy_to_host"); }
TEST_F(HelpedChangeFaults, one_call_of_the_device_fails) { every_call(run<false>, "1", false, 5); }

// A helper that had nothing to do leaves no doubt, whatever its driver says.
TEST_F(HelpedChangeFaults, a_helper_fails_when_it_has_nothing_to_do) {
    Pair pair;
    ASSERT_TRUE(pair.open_both(7 * kMiB, "", "jitter_us=1"));
    Model model(*pair.device, equal_blocks(kBlocks, 5 * kMiB / 2, Origin::pinned, SH_BLOCK_MUTABLE));
    SUCCEEDS(model.schedule(forward(kBlocks)));
    const sh_stream stream = pair.device->stream();
    ASSERT_EQ(change_all(model, *pair.device, stream, 2), SH_OK) << why();
    EXPECT_GT(model.stats().helped_bytes, 0u);
    const sh_fault_plan nothing_works = {sizeof nothing_works, SH_ERROR_BACKEND, nullptr, 1, 0};
    EXPECT_EQ(control<decltype(sh_fault_arm)>("sh_fault_arm")(&nothing_works), SH_OK);
    // Loads were helped, too, and one call tells of them.
    EXPECT_EQ(attempt([&] { return sh_trim(model.runtime(), 0, nullptr); }), SH_OK) << why();
    EXPECT_EQ(pair.device->memory().used_bytes, 0u);
    for (size_t i = 0; i < kBlocks; i++)
        ASSERT_EQ(attempt([&] { return change(model, i, 9, stream); }), SH_OK) << why();
    EXPECT_EQ(attempt([&] { return sh_write_back(model.runtime(), model.ids().data(), kBlocks); }), SH_OK) << why();
    for (size_t i = 0; i < kBlocks; i++) EXPECT_EQ(model.source(i).read(), *model.truth(i)) << "block " << i;
    control<decltype(sh_fault_disarm)>("sh_fault_disarm")();
}

}  // namespace
}  // namespace stagehand::test
