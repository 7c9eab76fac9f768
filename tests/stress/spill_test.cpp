// Spilling under random delays, with several engines at once, and with a failure at every call into the backend: every
// restored byte is right, memory that the library gave back may be used again at once, and nothing is leaked.
#include <thread>

#include "fault/fault.h"
#include "host/host_backend.h"
#include "plugin.h"
#include "scale.h"
#include "spill_engine.h"

#include "engine.h"

namespace stagehand::test {
namespace {

sh_device* open_spill_device(const char* name, const std::string& options) {
    sh_device_options wanted = SH_DEVICE_OPTIONS_INIT;
    wanted.backend_options = options.c_str();
    wanted.budget_bytes = 1 << 20;
    sh_device* device = nullptr;
    ignore(sh_device_open(name, &wanted, &device));
    return device;
}

sh_spiller_options small_bounds(uint64_t keep_bytes) {
    sh_spiller_options options = SH_SPILLER_OPTIONS_INIT;
    options.flags = SH_SPILLER_KEEP_BYTES | SH_SPILLER_PACK;
    options.keep_bytes = keep_bytes;
    options.high_watermark_bytes = 900'000;
    options.low_watermark_bytes = 500'000;
    options.to_host_bytes = 200'000;
    options.to_device_bytes = 300'000;
    options.pool_bytes = 8 << 20;
    return options;
}

void expect_right(SpillEngine& engine) {
    engine.finish();
    engine.trim();
    EXPECT_EQ(engine.wrong(), 0u) << "bytes, in " << engine.compared() << " tensors";
    const sh_spiller_stats stats = engine.stats();
    EXPECT_EQ(stats.kept_bytes + stats.leaving_bytes + stats.away_bytes, 0u);
    EXPECT_EQ(stats.unpinned_bytes, 0u);
}

TEST(Spill, a_thousand_steps_with_random_delays) {
    sh_device* const device = open_spill_device("host", "capacity=64MiB;jitter_us=60;bandwidth=4GB/s");
    ASSERT_TRUE(device) << why();
    {
        SpillEngine engine(device, small_bounds(300'000), 1, {});
        for (uint64_t k = 0; k < scaled(1000) && !testing::Test::HasFailure(); k++) EXPECT_TRUE(engine.step(12));
        expect_right(engine);
        EXPECT_GT(engine.stats().spilled, scaled(1000) * 3);
        EXPECT_GT(engine.stats().prefetched, scaled(1000));
        EXPECT_GT(engine.stats().packed_bytes, scaled(1000) * 300'000);
    }
    sh_device_close(device);
}

TEST(Spill, several_engines_on_one_device) {
    sh_device* const device = open_spill_device("host", "capacity=64MiB;jitter_us=20");
    ASSERT_TRUE(device) << why();
    std::vector<std::thread> threads;
    for (uint64_t seed = 1; seed <= 3; seed++)
        threads.emplace_back([device, seed] {
            SpillEngine engine(device, small_bounds(seed * 100'000), seed, {});
            for (uint64_t k = 0; k < scaled(200) && !testing::Test::HasFailure(); k++) EXPECT_TRUE(engine.step(16));
            expect_right(engine);
        });
    for (std::thread& thread : threads) thread.join();
    sh_device_close(device);
}

// One spiller, used by the thread of the forward, by that of the backward, and by a garbage collector.
TEST(Spill, calls_of_several_threads_on_one_spiller) {
    sh_device* const device = open_spill_device("host", "capacity=64MiB");
    ASSERT_TRUE(device) << why();
    sh_spiller* spiller = nullptr;
    const sh_spiller_options options = small_bounds(0);
    SUCCEEDS(sh_spiller_create(device, &options, &spiller));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([=] {
            sh_stream stream = 0;
            EXPECT_SUCCEEDS(sh_stream_create(device, &stream));
            std::vector<uint8_t> memory(8192, static_cast<uint8_t>(t)), back(8192);
            for (uint64_t k = 0; k < scaled(2000); k++) {
                const int64_t size = 8192;
                sh_saved_tensor saved = SH_SAVED_TENSOR_INIT;
                saved.element_bytes = 1;
                saved.address = reinterpret_cast<uint64_t>(memory.data());
                saved.dimensions = 1;
                saved.sizes = &size;
                saved.used_bytes = 1;
                sh_ticket ticket = 0, named[4];
                uint64_t count = 0;
                EXPECT_GE(sh_spill(spiller, &saved, stream, 0, &ticket), 0) << why();
                EXPECT_SUCCEEDS(sh_spiller_collect(spiller, stream, k % 2, named, 4, &count));
                const sh_status status = sh_restore(spiller, ticket, reinterpret_cast<uint64_t>(back.data()), stream);
                EXPECT_GE(status, 0) << why();
                EXPECT_SUCCEEDS(sh_stream_synchronize(device, stream));
                EXPECT_TRUE(status != SH_OK || back == memory);
                EXPECT_SUCCEEDS(sh_ticket_release(spiller, ticket));
            }
            sh_stream_destroy(device, stream);
        });
    for (std::thread& thread : threads) thread.join();
    sh_spiller_destroy(spiller);
    sh_device_close(device);
}

uint64_t failures() {
    sh_fault_counters_info counters = {sizeof counters, 0, 0, 0};
    auto* const read = plugin_function<decltype(sh_fault_counters)>("stagehand-fault.so", "sh_fault_counters");
    return read(&counters) == SH_OK ? counters.failures : 0;
}

// Runs with failing calls from the n-th on, for each n, until a run meets no failure. With `in_a_row` 0 all calls fail
// from there until the steps are over.
void every_call(uint64_t stride, uint64_t in_a_row, bool on_host) {
    if (!std::getenv("STAGEHAND_BACKEND_PATH")) GTEST_SKIP() << "STAGEHAND_BACKEND_PATH does not lead to the plugin";
    for (uint64_t n = 1;; n += stride) {
        SCOPED_TRACE("call " + std::to_string(n));
        sh_device* const device =
            open_spill_device("fault", "wrap=host;capacity=64MiB;bandwidth=200MB/s;fail_at=" + std::to_string(n) +
                                           ";fail_count=" + std::to_string(in_a_row));
        if (!device) continue;
        try {
            SpillEngine engine(device, small_bounds(100'000), n, {.faulty = true, .on_host = on_host});
            for (int k = 0; k < 3; k++) engine.step(10);
            plugin_function<decltype(sh_fault_disarm)>("stagehand-fault.so", "sh_fault_disarm")();
            expect_right(engine);
        } catch (const std::exception& error) {
            EXPECT_EQ(in_a_row, 0u) << error.what();  // there is no engine if everything fails from the start
        }
        sh_device_close(device);
        EXPECT_TRUE(host::all_memory_statistics().empty()) << "the device is still open";
        if (testing::Test::HasFailure()) return;
        if (failures() == 0) {
            EXPECT_GT(n, 100u) << "the run is too short to mean anything";
            return;
        }
    }
}

TEST(Spill, one_failure_at_every_call) { every_call(scaled_stride(1), 1, false); }
TEST(Spill, three_failures_in_a_row_at_every_call) { every_call(scaled_stride(5), 3, false); }
TEST(Spill, failures_at_every_call_of_an_engine_on_the_host) { every_call(scaled_stride(1), 2, true); }

TEST(Spill, nothing_works_from_a_call_on) { every_call(scaled_stride(3), 0, false); }
TEST(Spill, nothing_works_from_a_call_of_an_engine_on_the_host_on) { every_call(scaled_stride(3), 0, true); }

}  // namespace
}  // namespace stagehand::test
