// Packed tensors that the device unpacks, while calls into the backend fail or take random times: no byte is wrong, a
// failure is an error, and all memory comes back.
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "../unit/codec/weights.h"
#include "codec/frame.h"
#include "engine.h"
#include "fault/fault.h"
#include "host/host_backend.h"
#include "plugin.h"
#include "scale.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kMiB = 1 << 20, kBudget = 36 * kMiB;
constexpr int kBlocks = 11;

// 44 MiB of weights in eleven blocks, no two of which are equal. Chunks lie across the borders of pages.
struct Weights {
    Weights() {
        const std::vector<uint8_t> some = codec::test::weights(codec::FloatFormat::bf16, 100'003, 1);
        for (int i = 0; i < kBlocks; i++) {
            std::vector<uint8_t>& bytes = contents[i];
            bytes.resize(4 * kMiB + 18);
            for (size_t k = 0; k < bytes.size(); k++)
                bytes[k] = static_cast<uint8_t>(some[k % some.size()] ^ (k % 2 ? 0 : i));
            EXPECT_TRUE(codec::pack_frame(codec::FloatFormat::bf16, bytes.data(), bytes.size(), 2, &frames[i]).ok());
        }
    }
    std::vector<uint8_t> contents[kBlocks], frames[kBlocks];
};

const Weights& weights() {
    static const Weights all;
    return all;
}

DeviceSettings settings(const std::string& plan) {
    DeviceSettings settings;
    settings.name = "fault";
    settings.options = "wrap=host;capacity=128MiB;poison=1;" + plan;
    settings.staging_bytes = 8 << 20;
    settings.budget_bytes = kBudget;
    settings.page_bytes = 256 << 10;
    settings.link_bytes_per_second = 1'000'000;  // slower than any device unpacks, in plans
    return settings;
}

// A runtime that streams all weights. Calls that fail are made again.
class UnpackingEngine {
public:
    explicit UnpackingEngine(TestDevice& device, bool packed_weights_stay = false) {
        sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
        options.share_wait_ns = 60'000'000'000;  // for another runtime
        options.max_bytes = kBudget;
        if (!attempt("create", [&] { return sh_runtime_create(device.get(), &options, &runtime_); })) return;
        for (int i = 0; i < kBlocks; i++) {
            sh_segment segment = SH_SEGMENT_INIT;
            segment.kind = SH_SOURCE_POINTER;
            segment.pointer = weights().frames[i].data();
            segment.packed_bytes = weights().frames[i].size();
            segment.bytes = weights().contents[i].size();
            sh_block_desc desc = SH_BLOCK_DESC_INIT;
            desc.bytes = segment.bytes;
            desc.segments = &segment;
            desc.segment_count = 1;
            if (i % 3) desc.flags = SH_BLOCK_PIN;  // workers read the others
            if (!attempt("register", [&] { return sh_register_blocks(runtime_, &desc, 1, &blocks_[i]); })) return;
        }
        if (!packed_weights_stay) return;
        std::vector<sh_use> uses(kBlocks, sh_use(SH_USE_INIT));
        for (int i = 0; i < kBlocks; i++) uses[i].block = blocks_[i], uses[i].compute_ns = 1;
        attempt("schedule", [&] { return sh_set_schedule(runtime_, uses.data(), uses.size()); });
    }
    ~UnpackingEngine() { sh_runtime_destroy(runtime_); }
    UnpackingEngine(const UnpackingEngine&) = delete;
    UnpackingEngine& operator=(const UnpackingEngine&) = delete;

    void steps(int count) {
        for (int step = 0; step < count && !lost_; step++) {
            if (!attempt("step_begin", [&] { return sh_step_begin(runtime_); })) return;
            for (int i = 0; i < kBlocks && !lost_; i++) use(i);
            note(sh_step_end(runtime_));
        }
    }
    bool lost() const { return lost_; }
    uint64_t packed_resident_bytes() {
        sh_plan_options dry = SH_PLAN_OPTIONS_INIT;
        dry.flags = SH_PLAN_DRY_RUN;
        sh_plan_info plan = SH_PLAN_INFO_INIT;
        attempt("plan", [&] { return sh_plan(runtime_, &dry, &plan); });
        return plan.packed_resident_bytes;
    }

private:
    void note(sh_status status) { lost_ = lost_ || status == SH_ERROR_RUNTIME_LOST || status == SH_ERROR_DEVICE_LOST; }

    template <class Call>
    bool attempt(const char* what, Call&& call) {
        for (int i = 0; i < 4; i++) {
            const sh_status status = call();
            if (status == SH_OK) return true;
            EXPECT_NE(status, SH_ERROR_INTERNAL) << what << ": " << why();
            EXPECT_FALSE(why().empty());
            note(status);
            if (lost_) return false;
        }
        ADD_FAILURE() << what << " does not recover: " << why();
        return false;
    }

    void use(int i) {
        sh_view view = SH_VIEW_INIT;
        if (!attempt("acquire", [&] { return sh_acquire(runtime_, blocks_[i], SH_STREAM_HOST, 0, &view); })) return;
        found_.assign(view.bytes, 0);
        const bool read = attempt("read", [&] {
            return sh_read_block(runtime_, blocks_[i], SH_STREAM_HOST, 0, found_.data(), found_.size());
        });
        EXPECT_TRUE(!read || found_ == weights().contents[i]) << "block " << i;
        note(sh_release(runtime_, blocks_[i], SH_STREAM_HOST));
    }

    sh_runtime* runtime_ = nullptr;
    sh_block blocks_[kBlocks] = {};
    std::vector<uint8_t> found_;
    bool lost_ = false;
};

class UnpackStress : public testing::Test {
protected:
    void SetUp() override {
        if (!std::getenv("STAGEHAND_BACKEND_PATH")) GTEST_SKIP() << "the fault backend is not there";
    }
    static uint64_t failures() {
        sh_fault_counters_info counters = {sizeof counters, 0, 0, 0};
        const auto read = plugin_function<decltype(sh_fault_counters)>("stagehand-fault.so", "sh_fault_counters");
        return read(&counters) == SH_OK ? counters.failures : 0;
    }

    static void run(const std::string& plan, bool all_comes_back, bool packed_weights_stay) {
        SCOPED_TRACE(plan);
        std::unique_ptr<TestDevice> device;
        try {
            device = std::make_unique<TestDevice>(settings(plan));
        } catch (const std::exception&) {
            return;  // the call is one of the opening
        }
        bool lost = false;
        {
            UnpackingEngine engine(*device, packed_weights_stay);
            engine.steps(3);
            lost = engine.lost();
        }
        sh_memory_info memory = SH_MEMORY_INFO_INIT;
        if (sh_device_get_memory(device->get(), &memory) != SH_OK) {
            SUCCEEDS(sh_device_get_memory(device->get(), &memory));
        }
        EXPECT_LE(memory.peak_bytes, kBudget);
        // Giving memory back is tried twice, and again when it is needed next.
        EXPECT_TRUE(lost || !all_comes_back || memory.used_bytes == 0) << memory.used_bytes;
        device.reset();
        EXPECT_TRUE(host::all_memory_statistics().empty()) << "the device is still open";
    }
};

TEST_F(UnpackStress, IsOnTheDeviceIfNothingFails) {
    TestDevice device(settings(""));
    UnpackingEngine engine(device);
    engine.steps(3);
    const auto count = plugin_function<decltype(sh_fault_call_count)>("stagehand-fault.so", "sh_fault_call_count");
    EXPECT_GT(count("unpack"), 50u);
    UnpackingEngine keeping(device, true);
    keeping.steps(3);
    EXPECT_GT(keeping.packed_resident_bytes(), 8 * kMiB);
}

TEST_F(UnpackStress, SurvivesAFailureOfAnyCall) {
    // A run takes seconds under ThreadSanitizer.
    const uint64_t stride = kOneThreadOnly ? 40 : scaled_stride(1);
    uint64_t met = 0, number = 0;
    for (const char* call :
         {"unpack", "copy_to_device", "copy_on_device", "event_record", "stream_wait_event", "event_create",
          "event_elapsed", "event_synchronize", "stream_synchronize", "stream_create", "pages_create", "pages_map",
          "pages_unmap", "range_reserve", "range_free", "host_is_pinned", "event_destroy"}) {
        for (const uint64_t at : {1, 2, 3, 6, 9, 22, 45}) {
            if (number++ % stride != 0) continue;
            const bool once = at % 2 == 1;
            run("fail_call=" + std::string(call) + ";fail_at=" + std::to_string(at) +
                    (once ? ";fail_count=1" : ";fail_count=2"),
                once, number % 2 == 0);
            met += failures();
            if (HasFailure()) return;
        }
    }
    EXPECT_GT(met, stride == 1 ? 80u : 0u);
}

TEST_F(UnpackStress, IsInOrderWhateverTheTimes) {
    for (int seed = 1; seed <= std::max(1, static_cast<int>(5 * stress_scale())); seed++) {
        DeviceSettings for_two = settings("delay_us=200;delay_seed=" + std::to_string(seed));
        for_two.budget_bytes = 2 * kBudget;
        TestDevice device(for_two);
        UnpackingEngine one(device, true), other(device, seed % 2 == 0);
        std::thread thread([&] { other.steps(3); });
        one.steps(3);
        thread.join();
        EXPECT_FALSE(one.lost() || other.lost());
    }
}

}  // namespace
}  // namespace stagehand::test
