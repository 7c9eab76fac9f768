// Measures acquire and release of a resident block against a mutex, and whether the cost depends on the number of
// blocks.
#include <atomic>
#include <cinttypes>
#include <mutex>
#include <random>
#include <thread>

#include "measure.h"

namespace {

constexpr size_t kHot = 100;
constexpr size_t kPairs = 2'000'000;
constexpr int kRepeats = 7;

// Returns the nanoseconds of a lock and unlock without contention.
double mutex_pair_ns() {
    std::mutex mutex;
    uint64_t guarded = 0;
    const double s = bench::seconds([&] {
        for (size_t i = 0; i < kPairs; i++) {
            std::lock_guard lock(mutex);
            asm volatile("" : "+r"(guarded));
        }
    });
    return s / kPairs * 1e9;
}

double acquire_pair_ns(sh_runtime* runtime, const std::vector<sh_block>& hot) {
    auto view = sh_sized<sh_view>();
    sh_status failed = SH_OK;
    const double s = bench::seconds([&] {
        for (size_t i = 0, next = 0; i < kPairs; i++) {
            failed |= sh_acquire(runtime, hot[next], SH_STREAM_HOST, 0, &view);
            failed |= sh_release(runtime, hot[next], SH_STREAM_HOST);
            if (++next == hot.size()) next = 0;
        }
    });
    CHECK(failed);
    return s / kPairs * 1e9;
}

// A model with all blocks resident. A hundred of them, spread at random, are hot.
struct Resident : bench::Model {
    std::vector<sh_block> hot;

    explicit Resident(size_t count) : Model("sim", options(count)) {
        add(std::vector<uint64_t>(count, 8192), nullptr);
        schedule(0, false);
        CHECK(sh_plan(runtime, nullptr, nullptr));
        for (int step = 0; step < 3; step++) {  // the first step measures compute times
            CHECK(sh_step_begin(runtime, nullptr));
            for (const sh_block block : blocks) {
                auto view = sh_sized<sh_view>();
                CHECK(sh_acquire(runtime, block, SH_STREAM_HOST, 0, &view));
                CHECK(sh_release(runtime, block, SH_STREAM_HOST));
            }
            CHECK(sh_step_end(runtime));
        }
        CHECK(sh_step_begin(runtime, nullptr));
        std::mt19937_64 random(1);
        for (size_t i = 0; i < kHot; i++) hot.push_back(blocks[random() % blocks.size()]);
    }
    ~Resident() { CHECK(sh_step_end(runtime)); }

    static sh_device_options options(size_t count) {
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.page_bytes = 4096;
        options.budget_bytes = count * 8192;
        options.backend_options = "granularity=4096";
        return options;
    }
};

double measure(size_t count, double* out_mutex_ns) {
    Resident model(count);
    std::vector<double> pairs, mutexes;
    for (int i = 0; i < kRepeats; i++) {
        mutexes.push_back(mutex_pair_ns());
        pairs.push_back(acquire_pair_ns(model.runtime, model.hot));
    }
    *out_mutex_ns = bench::median(mutexes);
    return bench::median(pairs);
}

}  // namespace

int main() {
    // A second thread makes the C library take real locks, as in every program with more than one thread.
    std::atomic<bool> stop{false};
    std::thread other([&] {
        while (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    });
    double mutex_few = 0, mutex_many = 0;
    const double few = measure(100, &mutex_few);
    const double many = measure(1'000'000, &mutex_many);
    std::printf("mutex lock + unlock                           %8.1f ns\n", mutex_few);
    std::printf("acquire + release, resident, 10^2 blocks      %8.1f ns   %.2f x the mutex\n", few, few / mutex_few);
    std::printf("acquire + release, resident, 100 of 10^6      %8.1f ns   %.2f x the mutex\n", many, many / mutex_many);
    std::printf("10^6 blocks against 10^2                      %8.2f x\n", (many / mutex_many) / (few / mutex_few));
    stop = true;
    other.join();
}
