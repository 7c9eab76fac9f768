// Packed blocks whose sources are replaced and whose contents the engine changes, while calls into the backend take
// random times, and while another thread does the same with other blocks: each view shows the newest contents.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "../unit/codec/weights.h"
#include "engine.h"
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
        for (size_t i = 0; i < kBlocks; i++) add(i);
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
        attempt("step_begin", [&] { return sh_step_begin(runtime_, nullptr); });
        for (size_t i = 0; i < kBlocks; i++) compare(i);
        EXPECT_SUCCEEDS(sh_step_end(runtime_));
    }
    void finish() {
        for (size_t i = 0; i < kBlocks; i++) compare(i);
        for (size_t i = 0; i < kBlocks; i++) {
            attempt("write_back", [&] { return sh_write_back(runtime_, &blocks_[i].id, 1); });
            EXPECT_TRUE(!is_mutable(i) || *blocks_[i].memory == blocks_[i].truth) << "block " << i;
        }
    }

private:
    struct Changing {
        sh_block id = 0;
        std::vector<uint8_t> truth;
        std::unique_ptr<std::vector<uint8_t>> memory;
    };

    static bool is_mutable(size_t i) { return i % 2; }
    // Another thread may hold the block. It releases its view without waiting.
    template <class Call>
    static void attempt(const char* what, Call&& call) {
        sh_status status = call();
        for (; status == SH_ERROR_HELD; status = call()) std::this_thread::yield();
        EXPECT_EQ(status, SH_OK) << what << ": " << why();
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
        attempt("register", [&] { return sh_register_blocks(runtime_, &desc, 1, &blocks_[i].id); });
        free_if_packed(i);
    }
    // The memory before stays until the library has the new one.
    void replace(size_t i) {
        Changing& block = blocks_[i];
        attempt("update_begin", [&] { return sh_source_update_begin(runtime_, &block.id, 1); });
        const std::unique_ptr<std::vector<uint8_t>> before = std::move(block.memory);
        sh_segment segment = SH_SEGMENT_INIT;
        fill_in(block, &segment);
        attempt("replace", [&] { return sh_source_replace(runtime_, block.id, &segment, 1); });
        if (before) std::ranges::fill(*before, 0xdd);
        free_if_packed(i);
        EXPECT_SUCCEEDS(sh_source_update_end(runtime_, &block.id, 1));
    }
    void change_source(size_t i) {
        Changing& block = blocks_[i];
        if (!is_mutable(i)) return;
        attempt("update_begin", [&] { return sh_source_update_begin(runtime_, &block.id, 1); });
        EXPECT_TRUE(*block.memory == block.truth) << "what the engine has changed is written first";
        block.truth = weights(random_());
        std::ranges::copy(block.truth, block.memory->begin());
        EXPECT_SUCCEEDS(sh_source_update_end(runtime_, &block.id, 1));
    }
    void change_on_device(size_t i) {
        if (!is_mutable(i)) return;
        use(i, [&](Changing& block, uint8_t* bytes) {
            attempt("mark_dirty", [&] { return sh_mark_dirty(runtime_, block.id); });
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
        auto view = sh_sized<sh_view>();
        attempt("acquire", [&] { return sh_acquire(runtime_, blocks_[i].id, SH_STREAM_HOST, 0, &view); });
        use(blocks_[i], static_cast<uint8_t*>(view.address));
        EXPECT_SUCCEEDS(sh_release(runtime_, blocks_[i].id, SH_STREAM_HOST));
    }

    sh_runtime* const runtime_;
    std::mt19937_64 random_;
    Changing blocks_[kBlocks];
};

class ChangedSources : public testing::Test {
protected:
    void SetUp() override {
        if (!std::getenv("STAGEHAND_BACKEND_PATH")) GTEST_SKIP() << "the fault backend is not there";
    }
    static sh_runtime* create(TestDevice& device) {
        sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
        options.max_held = 4;
        sh_runtime* runtime = nullptr;
        EXPECT_SUCCEEDS(sh_runtime_create(device.get(), &options, &runtime));
        return runtime;
    }
};

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
                auto memory = sh_sized<sh_memory_info>();
                SUCCEEDS(sh_device_get_memory(device.get(), &memory));
                EXPECT_LE(memory.used_bytes, kBudget);
            }
            thread.join();
            one.finish();
            other.finish();
        }
        sh_runtime_destroy(runtime);
    }
}

}  // namespace
}  // namespace stagehand::test
