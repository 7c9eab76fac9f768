// Packed blocks whose sources are replaced and whose contents the engine changes, while calls into the backend fail or
// take random times, and while another thread does the same with other blocks: each view shows the newest contents.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "../unit/codec/weights.h"
#include "engine.h"
#include "fault/fault.h"
#include "host/host_backend.h"
#include "plugin.h"
#include "scale.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kBudget = 20 << 20, kBytes = (2 << 20) + 18;
constexpr size_t kBlocks = 12;

DeviceSettings settings(const std::string& plan) {
    DeviceSettings settings;
    settings.name = "fault";
    settings.options = "wrap=host;capacity=128MiB;poison=1;" + plan;
    settings.staging_bytes = 8 << 20;
    settings.budget_bytes = kBudget;
    settings.page_bytes = 64 << 10;
    settings.link_bytes_per_second = 1'000'000;  // slower than any device unpacks, in plans
    return settings;
}

std::vector<uint8_t> weights(uint64_t seed) {
    static const std::vector<uint8_t> some = codec::test::weights(codec::FloatFormat::bf16, 100'003, 1);
    std::vector<uint8_t> bytes(kBytes);
    for (size_t k = 0; k < bytes.size(); k++)
        bytes[k] = static_cast<uint8_t>(some[k % some.size()] ^ (k % 2 ? 0 : seed * 37));
    return bytes;
}

// Every second block is mutable. The engine frees the memory of the others as soon as they are packed.
class ChangingEngine {
public:
    ChangingEngine(sh_runtime* runtime, uint64_t seed) : runtime_(runtime), random_(seed) {
        for (size_t i = 0; i < kBlocks && !lost_; i++) add(i);
    }

    enum class Steps { own, others };
    void act(Steps steps = Steps::own) {
        const size_t i = random_() % kBlocks;
        switch (random_() % 5) {
            case 0:
                return replace(i);
            case 1:
                return change_source(i);
            case 2:
                return change_on_device(i);
            case 3:
                if (steps == Steps::own) return step();
                [[fallthrough]];
            default:
                compare(i);
        }
    }
    void step() {
        if (!attempt("step_begin", [&] { return sh_step_begin(runtime_); })) return;
        for (size_t i = 0; i < kBlocks && !lost_; i++) compare(i);
        note(sh_step_end(runtime_));
    }
    void finish() {
        for (size_t i = 0; i < kBlocks && !lost_; i++) compare(i);
        for (size_t i = 0; i < kBlocks && !lost_; i++) {
            if (!attempt("write_back", [&] { return sh_write_back(runtime_, &blocks_[i].id, 1); })) return;
            EXPECT_TRUE(!is_mutable(i) || *blocks_[i].memory == blocks_[i].truth) << "block " << i;
        }
    }
    bool lost() const { return lost_; }

private:
    struct Changing {
        sh_block id = 0;
        std::vector<uint8_t> truth;
        std::unique_ptr<std::vector<uint8_t>> memory;
    };

    static bool is_mutable(size_t i) { return i % 2; }
    void note(sh_status status) { lost_ = lost_ || status == SH_ERROR_RUNTIME_LOST || status == SH_ERROR_DEVICE_LOST; }

    template <class Call>
    bool attempt(const char* what, Call&& call) {
        for (int i = 0; i < 4; i++) {
            sh_status status = call();
            while (status == SH_ERROR_HELD) {  // by the other thread, which releases its view without waiting
                std::this_thread::yield();
                status = call();
            }
            if (status == SH_OK) return true;
            EXPECT_NE(status, SH_ERROR_INTERNAL) << what << ": " << why();
            EXPECT_FALSE(why().empty());
            note(status);
            if (lost_) return false;
        }
        ADD_FAILURE() << what << " does not recover: " << why();
        return false;
    }

    void fill_in(Changing& block, sh_segment* out) {
        block.truth = weights(random_());
        block.memory = std::make_unique<std::vector<uint8_t>>(block.truth);
        out->kind = SH_SOURCE_POINTER;
        out->pointer = block.memory->data();
        out->bytes = kBytes;
        out->format = SH_FORMAT_BF16;
    }
    void free_if_packed(size_t i) {
        if (is_mutable(i)) return;
        std::ranges::fill(*blocks_[i].memory, 0xee);
        blocks_[i].memory.reset();
    }
    void add(size_t i) {
        sh_segment segment = SH_SEGMENT_INIT;
        fill_in(blocks_[i], &segment);
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        desc.bytes = kBytes;
        desc.segments = &segment;
        desc.segment_count = 1;
        desc.flags = SH_BLOCK_PACK | (is_mutable(i) ? SH_BLOCK_MUTABLE : 0) | (i % 4 == 1 ? SH_BLOCK_PIN : 0);
        if (!attempt("register", [&] { return sh_register_blocks(runtime_, &desc, 1, &blocks_[i].id); })) return;
        free_if_packed(i);
    }
    // The memory before stays until the library has the new one.
    void replace(size_t i) {
        Changing& block = blocks_[i];
        if (!attempt("update_begin", [&] { return sh_source_update_begin(runtime_, &block.id, 1); })) return;
        const std::unique_ptr<std::vector<uint8_t>> before = std::move(block.memory);
        sh_segment segment = SH_SEGMENT_INIT;
        fill_in(block, &segment);
        if (!attempt("replace", [&] { return sh_source_replace(runtime_, block.id, &segment, 1); })) return;
        if (before) std::ranges::fill(*before, 0xdd);
        free_if_packed(i);
        note(sh_source_update_end(runtime_, &block.id, 1));
    }
    void change_source(size_t i) {
        Changing& block = blocks_[i];
        if (!is_mutable(i)) return;
        if (!attempt("update_begin", [&] { return sh_source_update_begin(runtime_, &block.id, 1); })) return;
        EXPECT_TRUE(*block.memory == block.truth) << "what the engine has changed is written first";
        block.truth = weights(random_());
        std::ranges::copy(block.truth, block.memory->begin());
        note(sh_source_update_end(runtime_, &block.id, 1));
    }
    void change_on_device(size_t i) {
        if (!is_mutable(i)) return;
        use(i, [&](Changing& block, uint8_t* bytes) {
            if (!attempt("mark_dirty", [&] { return sh_mark_dirty(runtime_, block.id); })) return;
            for (size_t k = random_() % 999; k < kBytes; k += 4099) bytes[k] = block.truth[k] ^= 0x11;
        });
    }
    void compare(size_t i) {
        use(i, [&](Changing& block, const uint8_t* bytes) {
            EXPECT_EQ(std::memcmp(bytes, block.truth.data(), kBytes), 0) << "block " << i;
        });
    }
    // The memory of the device is that of the host.
    template <class Use>
    void use(size_t i, Use&& use) {
        sh_view view = SH_VIEW_INIT;
        if (!attempt("acquire", [&] { return sh_acquire(runtime_, blocks_[i].id, SH_STREAM_HOST, 0, &view); })) return;
        use(blocks_[i], static_cast<uint8_t*>(view.address));
        note(sh_release(runtime_, blocks_[i].id, SH_STREAM_HOST));
    }

    sh_runtime* const runtime_;
    std::mt19937_64 random_;
    Changing blocks_[kBlocks];
    bool lost_ = false;
};

class ChangedSources : public testing::Test {
protected:
    void SetUp() override {
        if (!std::getenv("STAGEHAND_BACKEND_PATH")) GTEST_SKIP() << "the fault backend is not there";
    }
    static uint64_t failures() {
        sh_fault_counters_info counters = {sizeof counters, 0, 0, 0};
        const auto read = plugin_function<decltype(sh_fault_counters)>("stagehand-fault.so", "sh_fault_counters");
        return read(&counters) == SH_OK ? counters.failures : 0;
    }
    static sh_runtime* create(TestDevice& device) {
        sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
        options.max_held = 4;
        sh_runtime* runtime = nullptr;
        for (int i = 0; i < 4; i++)
            if (sh_runtime_create(device.get(), &options, &runtime) == SH_OK) return runtime;
        ADD_FAILURE() << "create does not recover: " << why();
        return nullptr;
    }
    static void run(const std::string& plan, uint64_t seed) {
        SCOPED_TRACE(plan + ", seed " + std::to_string(seed));
        std::unique_ptr<TestDevice> device;
        try {
            device = std::make_unique<TestDevice>(settings(plan));
        } catch (const std::exception&) {
            return;  // the call is one of the opening
        }
        sh_runtime* const runtime = create(*device);
        if (!runtime) return;
        {
            ChangingEngine engine(runtime, seed);
            for (int k = 0; k < 24 && !engine.lost(); k++) k % 8 ? engine.act() : engine.step();
            engine.finish();
            sh_runtime_destroy(runtime);
        }
        device.reset();
        EXPECT_TRUE(host::all_memory_statistics().empty()) << "the device is still open";
    }
};

TEST_F(ChangedSources, SurviveAFailureOfAnyCall) {
    // A run takes seconds under ThreadSanitizer.
    const uint64_t stride = kOneThreadOnly ? 40 : scaled_stride(1);
    uint64_t met = 0, number = 0;
    for (const char* call : {"unpack", "copy_to_device", "copy_to_host", "event_record", "stream_wait_event",
                             "event_create", "event_query", "event_synchronize", "stream_synchronize", "pages_create",
                             "pages_map", "pages_unmap", "host_is_pinned", "host_pin", "host_unpin"}) {
        for (const uint64_t at : {1, 2, 5, 13, 34, 80}) {
            if (number++ % stride != 0) continue;
            run("fail_call=" + std::string(call) + ";fail_at=" + std::to_string(at) +
                    (at % 2 ? ";fail_count=1" : ";fail_count=2"),
                number);
            met += failures();
            if (HasFailure()) return;
        }
    }
    EXPECT_GT(met, stride == 1 ? 60u : 0u);
}

// Two threads with blocks of their own in one runtime. One of them steps.
TEST_F(ChangedSources, AreSeenByAllThreadsWhateverTheTimes) {
    for (uint64_t seed = 1; seed <= std::max<uint64_t>(1, static_cast<uint64_t>(4 * stress_scale())); seed++) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        TestDevice device(settings("delay_us=200;delay_seed=" + std::to_string(seed)));
        sh_runtime* const runtime = create(device);
        ASSERT_TRUE(runtime);
        const int rounds = kOneThreadOnly ? 16 : 60;
        {
            ChangingEngine one(runtime, 2 * seed), other(runtime, 2 * seed + 1);
            std::thread thread([&] {
                for (int k = 0; k < rounds; k++) other.act(ChangingEngine::Steps::others);
            });
            for (int k = 0; k < rounds; k++) {
                one.act();
                if (k % 10 != 9) continue;
                sh_memory_info memory = SH_MEMORY_INFO_INIT;
                SUCCEEDS(sh_device_get_memory(device.get(), &memory));
                EXPECT_LE(memory.used_bytes, kBudget);
            }
            thread.join();
            one.finish();
            other.finish();
            EXPECT_FALSE(one.lost() || other.lost());
        }
        sh_runtime_destroy(runtime);
    }
}

}  // namespace
}  // namespace stagehand::test
