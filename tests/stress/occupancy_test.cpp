// Memory of engines that comes and goes: a failure at every call into the backend, and several threads against a model
// that predicts each status and each byte.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "engine.h"
#include "fault/fault.h"
#include "host/host_backend.h"
#include "plugin.h"
#include "scale.h"

namespace stagehand::test {
namespace {

template <class Function>
Function* control(const char* name) {
    return plugin_function<Function>("stagehand-fault.so", name);
}

sh_device* open_device(const std::string& plan) {
    const std::string options = "wrap=host;capacity=512MiB;granularity=64KiB;poison=1;" + plan;
    sh_device_options wanted = SH_DEVICE_OPTIONS_INIT;
    wanted.backend_options = options.c_str();
    wanted.budget_bytes = 384 << 20;
    sh_device* device = nullptr;
    ignore(sh_device_open("fault", &wanted, &device));
    return device;
}

// An allocation, and what has to be in it.
struct Memory {
    uint64_t address = 0;
    uint32_t contents = SH_CONTENTS_STAGE;
    std::vector<uint8_t> truth;  // empty: not defined
    uint64_t bytes = 0;
};

// One tag and its model. An engine's thread has tags of its own, so it can predict all that happens to them.
class Engine {
public:
    Engine(sh_device* device, std::string tag, uint64_t seed, bool faulty)
        : device_(device), tag_(std::move(tag)), random_(seed), faulty_(faulty) {}

    bool released() const { return released_; }
    size_t size() const { return all_.size(); }

    void alloc(uint64_t bytes, uint32_t contents) {
        sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
        options.tag = tag_.c_str();
        options.contents = contents;
        Memory memory;
        const sh_status status = sh_alloc(device_, bytes, &options, &memory.address);
        if (status != SH_OK) return expect_failure("sh_alloc", status, released_ ? SH_ERROR_INVALID_STATE : SH_OK);
        EXPECT_FALSE(released_) << "an allocation in a released tag";
        memory.contents = contents;
        memory.bytes = bytes;
        all_.push_back(std::move(memory));
        write(all_.size() - 1);
    }
    void free(size_t i) {
        const sh_status status = sh_free(device_, all_[i].address);
        if (status != SH_OK) return expect_failure("sh_free", status, SH_OK);
        all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    void write(size_t i) {
        if (released_) return;
        all_[i].truth = contents_of(random_(), 1, all_[i].bytes);
        std::memcpy(reinterpret_cast<void*>(all_[i].address), all_[i].truth.data(), all_[i].bytes);
    }
    void pause() {
        const char* const tags[] = {tag_.c_str()};
        sh_pause_options options = SH_PAUSE_OPTIONS_INIT;
        options.tags = tags;
        options.tag_count = 1;
        const sh_status status = sh_pause(device_, &options, nullptr);
        if (!known()) return expect_failure("sh_pause", status, SH_ERROR_NOT_FOUND);
        if (status != SH_OK) expect_failure("sh_pause", status, released_ ? SH_ERROR_INVALID_STATE : SH_OK);
        EXPECT_FALSE(status == SH_OK && released_) << "paused twice";
        if (state() != SH_OCCUPANCY_RELEASED) {
            EXPECT_NE(status, SH_OK);
            EXPECT_EQ(state(), uint32_t(SH_OCCUPANCY_RUNNING));
            return compare();
        }
        if (released_) return;
        released_ = true;
        for (Memory& memory : all_) {
            if (memory.contents == SH_CONTENTS_DROP) memory.truth.clear();
            if (memory.contents == SH_CONTENTS_ZERO) memory.truth.assign(memory.bytes, 0);
        }
    }
    void resume() {
        const char* const tags[] = {tag_.c_str()};
        sh_resume_options options = SH_RESUME_OPTIONS_INIT;
        options.tags = tags;
        options.tag_count = 1;
        const sh_status status = sh_resume(device_, &options, nullptr);
        if (!known()) return expect_failure("sh_resume", status, SH_ERROR_NOT_FOUND);
        if (status != SH_OK) {
            expect_failure("sh_resume", status, released_ ? SH_OK : SH_ERROR_INVALID_STATE);
            EXPECT_EQ(state(), uint32_t(released_ ? SH_OCCUPANCY_RELEASED : SH_OCCUPANCY_RUNNING));
            return;
        }
        EXPECT_TRUE(released_) << "resumed twice";
        EXPECT_EQ(state(), uint32_t(SH_OCCUPANCY_RUNNING));
        released_ = false;
        compare();
    }
    void compare() const {
        if (released_) return;
        for (const Memory& memory : all_)
            EXPECT_TRUE(memory.truth.empty() || std::memcmp(reinterpret_cast<const void*>(memory.address),
                                                            memory.truth.data(), memory.bytes) == 0)
                << memory.bytes << " bytes of contents " << memory.contents;
    }
    // One step of a random engine.
    void act() {
        const uint64_t what = random_() % 16;
        if (what < 5 && all_.size() < 12) {
            constexpr uint64_t kSizes[] = {1, 900, 70'000, 600'000, 2 << 20, (2 << 20) + 65'537, 3'500'000};
            alloc(kSizes[random_() % std::size(kSizes)], SH_CONTENTS_STAGE + static_cast<uint32_t>(random_() % 3));
        } else if (what < 8 && !all_.empty()) {
            free(random_() % all_.size());
        } else if (what < 11 && !all_.empty()) {
            write(random_() % all_.size());
        } else if (what < 13) {
            pause();
        } else {
            resume();
        }
        if (random_() % 8 == 0) compare();
    }
    // Nothing fails any more: everything comes back, and everything can be freed.
    void finish() {
        faulty_ = false;
        if (released_) resume();
        EXPECT_FALSE(released_);
        compare();
        if (known()) {
            pause();
            resume();
        }
        while (!all_.empty() && !testing::Test::HasFailure()) free(all_.size() - 1);
    }

private:
    bool known() const {
        sh_occupancy_info info = SH_OCCUPANCY_INFO_INIT;
        return sh_occupancy_get_info(device_, tag_.c_str(), &info) == SH_OK;
    }
    uint32_t state() const {
        sh_occupancy_info info = SH_OCCUPANCY_INFO_INIT;
        EXPECT_SUCCEEDS(sh_occupancy_get_info(device_, tag_.c_str(), &info));
        return info.state;
    }
    // `predicted` is what the model says: SH_OK if only the backend or a lack of memory can be the reason.
    void expect_failure(const char* call, sh_status status, sh_status predicted) const {
        const bool injected = faulty_ && status == SH_ERROR_BACKEND;
        EXPECT_TRUE(injected || status == predicted) << call << ": " << sh_status_string(status) << ", " << why();
        EXPECT_NE(status, SH_OK) << call;
    }

    sh_device* const device_;
    const std::string tag_;
    std::mt19937_64 random_;
    bool faulty_;
    bool released_ = false;
    std::vector<Memory> all_;
};

// A driver that refuses to unpin memory twice in a row keeps that memory for good, so the library never frees it.
enum class Unpinning { works, may_fail };

void expect_nothing_left(sh_device* device, Unpinning unpinning) {
    SUCCEEDS(sh_occupancy_trim(device, nullptr));
    const host::MemoryStatistics left = host::all_memory_statistics().at(0);
    EXPECT_EQ(left.pages, 0u);
    EXPECT_EQ(left.mapped_bytes, 0u);
    if (unpinning == Unpinning::works) {
        EXPECT_EQ(left.pinned_bytes, 0u);
    }
    sh_memory_info memory = SH_MEMORY_INFO_INIT;
    SUCCEEDS(sh_device_get_memory(device, &memory));
    EXPECT_EQ(memory.used_bytes, 0u);
}

class Occupancy : public testing::Test {
protected:
    void SetUp() override {
        if (!std::getenv("STAGEHAND_BACKEND_PATH"))
            GTEST_SKIP() << "STAGEHAND_BACKEND_PATH does not lead to the plugin";
    }

    static uint64_t failures() {
        sh_fault_counters_info counters = {sizeof counters, 0, 0, 0};
        return control<decltype(sh_fault_counters)>("sh_fault_counters")(&counters) == SH_OK ? counters.failures : 0;
    }

    // Two cycles of a tag with all kinds of memory, then one of a tag that is freed in a pause.
    static void work(sh_device* device, uint64_t n, Unpinning unpinning) {
        Engine weights(device, "weights", n, true), freed(device, "freed", n + 1, true);
        constexpr uint64_t kSizes[] = {1000, 70'000, 2 << 20, (4 << 20) + 65'537};
        for (const uint64_t bytes : kSizes)
            for (const uint32_t contents : {SH_CONTENTS_STAGE, SH_CONTENTS_DROP, SH_CONTENTS_ZERO}) {
                weights.alloc(bytes, contents);
                if (contents == SH_CONTENTS_STAGE) freed.alloc(bytes, contents);
            }
        for (int cycle = 0; cycle < 2; cycle++) {
            for (int k = 0; k < 4 && !weights.released(); k++) weights.pause();
            for (int k = 0; k < 4 && weights.released(); k++) weights.resume();
            for (size_t i = 0; i < weights.size(); i += 3) weights.write(i);
        }
        for (int k = 0; k < 4 && !freed.released(); k++) freed.pause();
        for (int k = 0; k < 12 && freed.size(); k++) freed.free(0);
        control<decltype(sh_fault_disarm)>("sh_fault_disarm")();
        weights.finish();
        freed.finish();
        expect_nothing_left(device, unpinning);
    }

    static void every_call(uint64_t stride, uint64_t in_a_row) {
        for (uint64_t n = 2;; n += stride) {
            SCOPED_TRACE("call " + std::to_string(n));
            sh_device* const device =
                open_device("fail_at=" + std::to_string(n) + ";fail_count=" + std::to_string(in_a_row));
            if (!device) continue;
            work(device, n, in_a_row == 1 ? Unpinning::works : Unpinning::may_fail);
            const bool none = failures() == 0;
            sh_device_close(device);
            EXPECT_TRUE(host::all_memory_statistics().empty()) << "the device is still open";
            if (testing::Test::HasFailure()) return;
            if (!none) continue;
            EXPECT_GT(n, 200u) << "the run is too short to mean anything";
            return;
        }
    }
};

TEST_F(Occupancy, one_failure_at_every_call) { every_call(scaled_stride(5), 1); }
TEST_F(Occupancy, two_failures_in_a_row_at_every_call) { every_call(scaled_stride(11), 2); }
TEST_F(Occupancy, five_failures_in_a_row_at_every_call) { every_call(scaled_stride(19), 5); }
TEST_F(Occupancy, nothing_works_from_a_call_on) { every_call(scaled_stride(15), 0); }

// The device goes away while calls fail: nothing but what the driver keeps is left.
TEST_F(Occupancy, a_device_that_closes_with_memory_leaves_nothing) {
    for (const bool released : {false, true}) {
        sh_device* const device = open_device("");
        ASSERT_TRUE(device) << why();
        Engine engine(device, "weights", 1, false);
        engine.alloc(3'000'000, SH_CONTENTS_STAGE);
        engine.alloc(1000, SH_CONTENTS_ZERO);
        if (released) engine.pause();
        sh_device_close(device);
        EXPECT_TRUE(host::all_memory_statistics().empty());
    }
}

TEST_F(Occupancy, host_memory_is_pinned_in_the_first_cycle_only) {
    sh_device* const device = open_device("");
    ASSERT_TRUE(device) << why();
    {
        Engine engine(device, "weights", 1, false);
        for (const uint64_t bytes : {1000, 3 << 20, 70'000, 5 << 20}) engine.alloc(bytes, SH_CONTENTS_STAGE);
        auto* const count = control<decltype(sh_fault_call_count)>("sh_fault_call_count");
        uint64_t pinned = 0, events = 0;
        for (int cycle = 0; cycle < 4; cycle++) {
            engine.pause();
            engine.resume();
            if (cycle) {
                EXPECT_EQ(count("host_register"), pinned);
                EXPECT_EQ(count("event_create") + count("stream_create"), events);
            }
            pinned = count("host_register");
            events = count("event_create") + count("stream_create");
        }
        EXPECT_GT(pinned, 0u);
        engine.finish();
    }
    expect_nothing_left(device, Unpinning::works);
    sh_device_close(device);
}

// Each thread predicts what happens to its tags, whatever the others do.
void several_threads(uint64_t seed, bool faulty) {
    sh_device* const device = open_device("");
    ASSERT_TRUE(device) << why();
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 3; t++)
        threads.emplace_back([=] {
            std::mt19937_64 random(seed * 10 + t);
            Engine first(device, "first " + std::to_string(t), random(), faulty),
                second(device, "second " + std::to_string(t), random(), faulty);
            for (uint64_t k = 0; k < scaled(400) && !testing::Test::HasFailure(); k++) {
                if (faulty && random() % 4 == 0) {
                    const sh_fault_plan plan = {sizeof plan, SH_ERROR_BACKEND, nullptr, 1 + random() % 40,
                                                1 + random() % 4};
                    EXPECT_EQ(control<decltype(sh_fault_arm)>("sh_fault_arm")(&plan), SH_OK);
                }
                (random() % 2 ? first : second).act();
                sh_occupancy_info all = SH_OCCUPANCY_INFO_INIT;
                EXPECT_SUCCEEDS(sh_occupancy_get_info(device, nullptr, &all));
            }
        });
    for (std::thread& thread : threads) thread.join();
    threads.clear();
    control<decltype(sh_fault_disarm)>("sh_fault_disarm")();
    sh_device_close(device);
    EXPECT_TRUE(host::all_memory_statistics().empty()) << "the device is still open";
}

TEST_F(Occupancy, several_threads_and_a_model_of_each) {
    for (uint64_t seed = 0; seed < scaled(4); seed++) several_threads(seed, false);
}

TEST_F(Occupancy, several_threads_and_failures_at_random) {
    for (uint64_t seed = 0; seed < scaled(4); seed++) several_threads(100 + seed, true);
}

// One thread, for as long as it takes to see the states of several tags together.
TEST_F(Occupancy, a_random_engine_with_failures_comes_back_whole) {
    for (uint64_t seed = 0; seed < scaled(20) && !HasFailure(); seed++) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        sh_device* const device = open_device("");
        ASSERT_TRUE(device) << why();
        {
            std::mt19937_64 random(seed);
            Engine engine(device, "weights", random(), true);
            for (int k = 0; k < 150 && !HasFailure(); k++) {
                const sh_fault_plan plan = {sizeof plan, SH_ERROR_BACKEND, nullptr, 1 + random() % 60,
                                            1 + random() % 4};
                if (k % 3 == 0) {
                    SUCCEEDS(control<decltype(sh_fault_arm)>("sh_fault_arm")(&plan));
                }
                engine.act();
            }
            control<decltype(sh_fault_disarm)>("sh_fault_disarm")();
            engine.finish();
        }
        expect_nothing_left(device, Unpinning::may_fail);
        sh_device_close(device);
    }
}

}  // namespace
}  // namespace stagehand::test
