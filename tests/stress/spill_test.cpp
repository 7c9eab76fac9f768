// Spilling under random delays, and with several engines at once: every restored byte is right, memory that the library
// gave back may be used again at once, and nothing is leaked.
#include <thread>

#include "scale.h"
#include "spill_engine.h"

#include "engine.h"

namespace stagehand::test {
namespace {

sh_device* open_spill_device(const std::string& options) {
    sh_device_options wanted = SH_DEVICE_OPTIONS_INIT;
    wanted.backend_options = options.c_str();
    wanted.budget_bytes = 1 << 20;
    sh_device* device = nullptr;
    ignore(sh_device_open("host", &wanted, &device));
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
    sh_device* const device = open_spill_device("capacity=64MiB;jitter_us=60;bandwidth=4GB/s");
    ASSERT_TRUE(device) << why();
    {
        SpillEngine engine(device, small_bounds(300'000), 1);
        for (uint64_t k = 0; k < scaled(1000) && !testing::Test::HasFailure(); k++) engine.step(12);
        expect_right(engine);
        EXPECT_GT(engine.stats().spilled, scaled(1000) * 3);
        EXPECT_GT(engine.stats().prefetched, scaled(1000));
        EXPECT_GT(engine.stats().packed_bytes, scaled(1000) * 300'000);
    }
    sh_device_close(device);
}

TEST(Spill, several_engines_on_one_device) {
    sh_device* const device = open_spill_device("capacity=64MiB;jitter_us=20");
    ASSERT_TRUE(device) << why();
    std::vector<std::thread> threads;
    for (uint64_t seed = 1; seed <= 3; seed++)
        threads.emplace_back([device, seed] {
            SpillEngine engine(device, small_bounds(seed * 100'000), seed);
            for (uint64_t k = 0; k < scaled(200) && !testing::Test::HasFailure(); k++) engine.step(16);
            expect_right(engine);
        });
    for (std::thread& thread : threads) thread.join();
    sh_device_close(device);
}

// One spiller, used by the thread of the forward, by that of the backward, and by a garbage collector.
TEST(Spill, calls_of_several_threads_on_one_spiller) {
    sh_device* const device = open_spill_device("capacity=64MiB");
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

}  // namespace
}  // namespace stagehand::test
