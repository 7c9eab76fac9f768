// A failure at every single call into a device that helps to pause and to spill, or into the device that it helps.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "failing_helpers.h"

namespace stagehand::test {
namespace {

class HelperFaults : public FailingHelpers {
protected:
    static constexpr const char* kLate = ";bandwidth=100MB/s;jitter_us=5000";

    // Two pauses whose contents a helper carries a part of.
    static void pause_twice(const std::string& device_plan, const std::string& helper_plan, bool may_fail,
                            Result* out) {
        Pair pair;
        if (!pair.open_both(64 * kMiB, device_plan, helper_plan)) {
            out->failures = 1;
            return;
        }
        sh_device* const device = pair.device->get();
        const auto attempt = [&](const auto& call) { expect_success(call, may_fail); };
        constexpr uint64_t kBytes = 5 * kMiB;
        uint64_t memory = 0;
        attempt([&] { return sh_alloc(device, kBytes, nullptr, &memory); });
        ASSERT_NE(memory, 0u);
        for (uint64_t cycle = 0; cycle < 2; cycle++) {
            const std::vector<uint8_t> contents = contents_of(cycle, 1, kBytes);
            std::memcpy(reinterpret_cast<void*>(memory), contents.data(), kBytes);
            sh_occupancy_change change = SH_OCCUPANCY_CHANGE_INIT;
            attempt([&] { return sh_pause(device, nullptr, &change); });
            out->helped += change.helped_bytes;
            attempt([&] { return sh_resume(device, nullptr, &change); });
            out->helped += change.helped_bytes;
            EXPECT_EQ(std::memcmp(reinterpret_cast<void*>(memory), contents.data(), kBytes), 0) << "cycle " << cycle;
        }
        out->failures = failures();
        attempt([&] { return sh_free(device, memory); });
        attempt([&] { return sh_occupancy_trim(device, nullptr); });
        if (!helper_plan.empty()) {
            EXPECT_EQ(pair.device->memory().used_bytes, 0u);
        }
        pair = Pair();
        EXPECT_TRUE(host::all_memory_statistics().empty()) << "a device is still open";
    }
};

// What was known to be right before a failure is not told of, and not loaded again.
TEST_F(HelperFaults, only_loads_that_nobody_has_looked_at_since_are_lost) {
    Pair pair;
    ASSERT_TRUE(pair.open_both(14 * kMiB, "bandwidth=1GB/s;latency=1us", "bandwidth=1GB/s;latency=1us"));
    Model model(*pair.device, equal_blocks(4, 5 * kMiB));
    SUCCEEDS(model.schedule(forward(4)));
    const sh_stream stream = pair.device->stream();
    const sh_fault_plan no_answer = {sizeof no_answer, SH_ERROR_DEVICE_LOST, "event_query", 1, 0};
    const auto arm = [&] { EXPECT_EQ(control<decltype(sh_fault_arm)>("sh_fault_arm")(&no_answer), SH_OK); };
    const auto disarm = control<decltype(sh_fault_disarm)>("sh_fault_disarm");
    SUCCEEDS(model.step(forward(4), stream));
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    const uint64_t helped = model.stats().helped_bytes, loads = model.stats().loads;
    EXPECT_GT(helped, 0u);
    arm();
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    EXPECT_EQ(model.stats().loads, loads);
    disarm();

    SUCCEEDS(model.step(forward(4), stream));
    EXPECT_GT(model.stats().helped_bytes, helped);
    arm();
    EXPECT_EQ(sh_runtime_synchronize(model.runtime()), SH_ERROR_BACKEND);
    EXPECT_TRUE(tells_of_a_helper()) << why();
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    const uint64_t until_then = model.stats().helped_bytes;
    SUCCEEDS(model.step(forward(4), stream));
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    EXPECT_EQ(model.stats().helped_bytes, until_then) << "the helper is not left out";
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

// Small copies are helped, and at once.
class SmallCopyFaults : public HelperFaults {
protected:
    void SetUp() override {
        HelperFaults::SetUp();
        if (IsSkipped()) return;
        least_ = transfer::Bond::least_bytes();
        transfer::Bond::set_least_bytes(32 << 10);
        core::Helpers::set_quiet_ns(0);
    }
    void TearDown() override {
        if (!least_) return;
        transfer::Bond::set_least_bytes(least_);
        core::Helpers::set_quiet_ns(100'000'000);
    }

private:
    uint64_t least_ = 0;
};

class HelpedPauseFaults : public SmallCopyFaults {
protected:
    // A helper whose driver refuses everything, without a word that the device is lost, may still write host memory. So
    // a pause that it has begun fails, and so do all after it. The contents stay, and the engine goes on: what was away
    // before comes back, and memory can be freed.
    // The helper is slow and begins its copies late, so that it still reads and writes memory that is freed too early.
    static void pause_with_a_helper_of_which_nothing_is_known(const std::string&, const std::string& helper_plan, bool,
                                                              Result* out) {
        Pair pair;
        if (!pair.open_both(64 * kMiB, "", helper_plan + kLate)) {
            out->failures = 1;
            return;
        }
        sh_device* const device = pair.device->get();
        constexpr uint64_t kBytes = 5 * kMiB;
        const std::vector<uint8_t> contents = contents_of(1, 1, kBytes);
        uint64_t memory = 0, away = 0;
        sh_alloc_options early = SH_ALLOC_OPTIONS_INIT;
        early.tag = "early";
        SUCCEEDS(sh_alloc(device, kMiB, &early, &away));
        std::memcpy(reinterpret_cast<void*>(away), contents.data(), kMiB);
        SUCCEEDS(sh_pause(device, nullptr, nullptr));
        SUCCEEDS(sh_alloc(device, kBytes, nullptr, &memory));
        std::memcpy(reinterpret_cast<void*>(memory), contents.data(), kBytes);
        sh_pause_options late = SH_PAUSE_OPTIONS_INIT;
        const char* const tag = "default";
        late.tags = &tag;
        late.tag_count = 1;
        sh_resume_options late_again = SH_RESUME_OPTIONS_INIT;
        late_again.tags = &tag;
        late_again.tag_count = 1;
        bool pauses = false;
        for (int cycle = 0; cycle < 3; cycle++) {
            sh_occupancy_change change = SH_OCCUPANCY_CHANGE_INIT;
            pauses = sh_pause(device, &late, &change) == SH_OK;
            if (pauses) {
                out->helped += change.helped_bytes;
                SUCCEEDS(sh_resume(device, &late_again, nullptr));
            }
            ASSERT_EQ(std::memcmp(reinterpret_cast<void*>(memory), contents.data(), kBytes), 0) << "cycle " << cycle;
        }
        out->failures = failures();
        SUCCEEDS(sh_resume(device, nullptr, nullptr));
        ASSERT_EQ(std::memcmp(reinterpret_cast<void*>(away), contents.data(), kMiB), 0);
        SUCCEEDS(sh_free(device, memory));
        SUCCEEDS(sh_free(device, away));
        if (pauses) {
            SUCCEEDS(sh_occupancy_trim(device, nullptr));
        }
        EXPECT_EQ(pair.device->memory().used_bytes, 0u);
    }

    void SetUp() override {
        SmallCopyFaults::SetUp();
        if (!IsSkipped() && devices_without_pages()) GTEST_SKIP() << "memory cannot be paused";
    }
};

TEST_F(HelpedPauseFaults, one_call_of_the_helper_fails) { every_call(pause_twice, "1", true); }
TEST_F(HelpedPauseFaults, the_helper_is_lost_from_one_call_on) {
    every_call(pause_twice, "0;fail_status=" + std::to_string(SH_ERROR_DEVICE_LOST), true);
}
TEST_F(HelpedPauseFaults, nothing_is_known_of_the_helper_from_one_call_on) {
    every_call(pause_with_a_helper_of_which_nothing_is_known, "0", true);
}
TEST_F(HelpedPauseFaults, the_helper_goes_in_a_copy_to_the_host) { every_copy(pause_twice, "copy_to_host"); }
TEST_F(HelpedPauseFaults, the_helper_goes_in_a_copy_from_the_host) { every_copy(pause_twice, "copy_to_device"); }
TEST_F(HelpedPauseFaults, one_call_of_the_device_fails) { every_call(pause_twice, "1", false); }

class HelpedSpillFaults : public SmallCopyFaults {
protected:
    static constexpr uint64_t kTensor = 2 * kMiB;
    static constexpr uint64_t kCount = 3;

    // Two steps that spill, of which the second one has a helper. A tensor comes back with its bytes, or fails by name.
    // `lost`: the tensors that did not come back.
    static void spill_twice(const std::string& device_plan, const std::string& helper_plan, bool may_fail,
                            Result* out) {
        Pair pair;
        if (!pair.open_both(64 * kMiB, device_plan, helper_plan)) {
            out->failures = 1;
            return;
        }
        sh_device* const device = pair.device->get();
        const auto attempt = [&](const auto& call) { expect_success(call, may_fail); };
        sh_spiller_options options = SH_SPILLER_OPTIONS_INIT;
        sh_spiller* spiller = nullptr;
        sh_stream stream = 0;
        attempt([&] { return sh_spiller_create(device, &options, &spiller); });
        attempt([&] { return sh_stream_create(device, &stream); });
        ASSERT_TRUE(spiller && stream);
        std::vector<std::vector<uint8_t>> memory(kCount);
        for (uint64_t step = 0; step < 3; step++) {
            attempt([&] { return sh_spiller_begin_step(spiller, step); });
            const uint64_t wrong = spill_step(device, spiller, stream, step, may_fail, &memory, &out->lost);
            const sh_status ended = sh_spiller_end_step(spiller);
            expect_known(ended, may_fail);
            EXPECT_TRUE(!wrong || ended < 0) << wrong << " tensors of step " << step << " came back wrong";
            wait_for_pool(spiller, &out->helped);
        }
        out->failures = failures();
        attempt([&] { return sh_stream_synchronize(device, stream); });
        attempt([&] { return sh_spiller_trim(spiller, nullptr); });
        sh_spiller_destroy(spiller);
        sh_stream_destroy(device, stream);
        pair = Pair();
        EXPECT_TRUE(host::all_memory_statistics().empty()) << "a device is still open";
    }

    // The same as for pauses: such a helper may go on using the buffers, which are lost with it. The helper is slow and
    // begins its copies late, so that it still uses buffers that are freed too early.
    static void spill_with_a_helper_of_which_nothing_is_known(const std::string&, const std::string& helper_plan, bool,
                                                              Result* out) {
        Pair pair;
        if (!pair.open_both(64 * kMiB, "", helper_plan + kLate)) {
            out->failures = 1;
            return;
        }
        sh_device* const device = pair.device->get();
        sh_spiller_options options = SH_SPILLER_OPTIONS_INIT;
        sh_spiller* spiller = nullptr;
        SUCCEEDS(sh_spiller_create(device, &options, &spiller));
        const sh_stream stream = pair.device->stream();
        std::vector<std::vector<uint8_t>> memory(kCount);
        for (uint64_t step = 0; step < 2; step++) {
            SUCCEEDS(sh_spiller_begin_step(spiller, step));
            const uint64_t wrong = spill_step(device, spiller, stream, step, true, &memory, &out->lost);
            const sh_status ended = sh_spiller_end_step(spiller);
            EXPECT_TRUE(!wrong || ended < 0) << wrong << " tensors of step " << step << " came back wrong";
            wait_for_pool(spiller, &out->helped);
        }
        out->failures = failures();
        // Memory that the helper may use is freed by neither.
        const sh_status trimmed = sh_spiller_trim(spiller, nullptr);
        EXPECT_TRUE(trimmed == SH_OK || out->failures) << why();
        sh_spiller_destroy(spiller);
    }

    // The pool's thread pins what the first step lacked, if it can.
    static void wait_for_pool(sh_spiller* spiller, uint64_t* helped) {
        sh_spiller_stats stats = SH_SPILLER_STATS_INIT;
        for (int k = 0; k < 30 && stats.pool_bytes < kCount * kTensor; k++) {
            SUCCEEDS(sh_spiller_get_stats(spiller, &stats));
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        *helped = stats.helped_bytes;
    }

    // A failure of the helper is told by its name. It is not to be seen in the call that it has come in.
    static void expect_known(sh_status status, bool may_fail) {
        const bool known = std::string(why()).find("a device that helps has failed") != std::string::npos;
        EXPECT_TRUE(status >= 0 || may_fail || known) << why();
    }

    static void sleep(void*) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

    // Returns the number of tensors with wrong bytes.
    static uint64_t spill_step(sh_device* device, sh_spiller* spiller, sh_stream stream, uint64_t step, bool may_fail,
                               std::vector<std::vector<uint8_t>>* memory, uint64_t* lost) {
        const int64_t bytes = kTensor;
        std::vector<sh_ticket> tickets(kCount), gone(kCount);
        // The copies of the last step have not ended when the tickets are named.
        if (step == 2) expect_success([&] { return sh_stream_launch(device, stream, sleep, nullptr, 0); }, may_fail);
        for (uint64_t i = 0; i < kCount; i++) {
            (*memory)[i] = contents_of(10 * step + i, 1, kTensor);
            sh_saved_tensor tensor = SH_SAVED_TENSOR_INIT;
            tensor.element_bytes = tensor.dimensions = 1;
            tensor.sizes = &bytes;
            tensor.address = reinterpret_cast<uint64_t>((*memory)[i].data());
            const auto spill = [&] {
                const sh_status status = sh_spill(spiller, &tensor, stream, SH_SPILL_NOW, &tickets[i]);
                return status == SH_KEPT ? sh_status(SH_OK) : status;
            };
            expect_success(spill, may_fail);
        }
        uint64_t count = 0;
        expect_known(sh_spiller_collect(spiller, stream, SH_COLLECT_ALL, gone.data(), gone.size(), &count), may_fail);
        expect_success([&] { return sh_stream_synchronize(device, stream); }, may_fail);
        for (uint64_t i = 0; i < kCount; i++)
            if (std::find(gone.begin(), gone.begin() + static_cast<ptrdiff_t>(count), tickets[i]) !=
                gone.begin() + static_cast<ptrdiff_t>(count))
                (*memory)[i].assign(kTensor, 0xee);
        uint64_t wrong = 0;
        if (step == 2)  // the helper is let go before anybody has asked for the tensors
            expect_success([&] { return sh_spiller_trim(spiller, nullptr); }, may_fail);
        std::vector<uint64_t> addresses;
        for (std::vector<uint8_t>& bytes : *memory) addresses.push_back(reinterpret_cast<uint64_t>(bytes.data()));
        if (step == 1 && count == kCount)  // as far as the helper has not lost them
            expect_known(sh_prefetch_spilled(spiller, tickets.data(), addresses.data(), kCount, stream), may_fail);
        for (uint64_t i = kCount; i-- > 0;) {
            sh_status status = SH_OK;
            for (int k = 0; k < 4; k++) {
                status = sh_restore(spiller, tickets[i], reinterpret_cast<uint64_t>((*memory)[i].data()), stream);
                if (status >= 0) break;
            }
            expect_success([&] { return sh_stream_synchronize(device, stream); }, may_fail);
            if (status >= 0) {
                wrong += (*memory)[i] != contents_of(10 * step + i, 1, kTensor);
            } else {
                ++*lost;
                expect_known(status, may_fail);
            }
            expect_success([&] { return sh_ticket_release(spiller, tickets[i]); }, may_fail);
        }
        return wrong;
    }
};

TEST_F(HelpedSpillFaults, one_call_of_the_helper_fails) { every_call(spill_twice, "1", true); }
TEST_F(HelpedSpillFaults, the_helper_is_lost_from_one_call_on) {
    every_call(spill_twice, "0;fail_status=" + std::to_string(SH_ERROR_DEVICE_LOST), true);
}
TEST_F(HelpedSpillFaults, nothing_is_known_of_the_helper_from_one_call_on) {
    every_call(spill_with_a_helper_of_which_nothing_is_known, "0", true);
}
// From one copy on, the helper copies nothing, and says so only when it is asked.
TEST_F(HelpedSpillFaults, the_helper_goes_in_a_copy_to_the_host) { every_copy(spill_twice, "copy_to_host"); }
TEST_F(HelpedSpillFaults, the_helper_goes_in_a_copy_from_the_host) { every_copy(spill_twice, "copy_to_device"); }
TEST_F(HelpedSpillFaults, one_call_of_the_device_fails) { every_call(spill_twice, "1", false, 3); }

}  // namespace
}  // namespace stagehand::test
