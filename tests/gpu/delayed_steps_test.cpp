// A thousand steps with random delays on the device and on the host never change a byte. A program on the device
// compares every view with its expected bytes. The test uses all kinds of sources, blocks of many sizes that the engine
// changes and the library writes back, and two streams. The streams are the engine's own, or the default streams of two
// of its threads.
//
// STAGEHAND_TEST_DEVICE names the device (cuda:0). STAGEHAND_TEST_PAGE_BYTES sets its page size (2 MiB), and the blocks
// scale with it. STAGEHAND_STRESS_SCALE multiplies the number of steps. The test is skipped if the device is not there.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <random>
#include <thread>

#include "../stress/scale.h"
#include "device_programs.h"
#include "worker.h"

namespace stagehand::test {
namespace {

constexpr size_t kBlocks = 24;

enum class Kind { pinned, pageable, file };

struct Block {
    Kind kind = Kind::pinned;
    bool changes = false;  // the engine writes to it
    uint64_t bytes = 0;
    uint64_t contents = 0;
    char* memory = nullptr;
    int file = -1;
    sh_block id = 0;
};

struct Way {
    const char* name;
    bool backward = false;  // after forward
    bool threads = false;   // each with its own default stream
};

class DelayedSteps : public testing::TestWithParam<Way> {
protected:
    void SetUp() override {
        const char* const name = std::getenv("STAGEHAND_TEST_DEVICE");
        for (size_t i = 0; i < kBlocks; i++) total_ += size_of(i);
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.page_bytes = page_bytes();
        options.budget_bytes = total_ / 100 * 40;
        if (sh_device_open(name ? name : "cuda:0", &options, &device_) != SH_OK) GTEST_SKIP() << why();
        programs_ = device_programs(device_, kBlocks);
        if (!programs_) GTEST_SKIP() << "the test cannot read this device's memory";
        for (size_t i = 0; i < kBlocks && !HasFatalFailure(); i++) make_source(i);
        if (HasFatalFailure()) return;
        OK(sh_runtime_create(device_, nullptr, &runtime_));
        register_blocks();
        make_streams();
    }
    void make_streams() {
        if (!GetParam().threads) {
            for (sh_stream& stream : streams_) OK(sh_stream_create(device_, &stream));
            return;
        }
        auto caps = sh_sized<sh_device_caps>();
        OK(sh_device_get_caps(device_, &caps));
        if (caps.flags & SH_DEVICE_HOST_ADDRESSABLE)
            GTEST_SKIP() << "threads have no streams of their own on this device";
        streams_[0] = streams_[1] = reinterpret_cast<sh_stream>(CU_STREAM_PER_THREAD);
        for (auto& thread : threads_) thread.emplace([this] { programs_->enter_thread(); });
    }
    void TearDown() override {
        sh_runtime_destroy(runtime_);
        for (const sh_stream stream : streams_)
            if (stream && !GetParam().threads) sh_stream_destroy(device_, stream);
        for (auto& thread : threads_) thread.reset();
        programs_.reset();
        for (const Block& block : blocks_) {
            if (block.kind == Kind::pinned && block.memory) sh_host_free(device_, block.memory);
            if (block.kind == Kind::pageable) std::free(block.memory);
            if (block.file >= 0) close(block.file);
        }
        sh_device_close(device_);
    }

    // Sizes from a quarter of a page to four pages, in whole pages and not.
    static uint64_t size_of(size_t i) { return (1 + i * 7 % 16) * (page_bytes() / 4) - i % 3 * 1000; }

    void make_source(size_t i) {
        Block& block = blocks_[i];
        block.kind = i % 4 == 1 ? Kind::pageable : i % 4 == 2 ? Kind::file : Kind::pinned;
        block.changes = i % 8 == 3 || i % 8 == 5;  // pinned and pageable ones
        block.bytes = size_of(i);
        block.contents = next_contents_++;
        void* memory = nullptr;
        switch (block.kind) {
            case Kind::pinned:
                OK(sh_host_alloc(device_, block.bytes, &memory, nullptr));
                break;
            case Kind::pageable:
                memory = std::aligned_alloc(8, block.bytes);
                break;
            case Kind::file:
                block.file = memfd_create("stagehand-test", MFD_CLOEXEC);
                ASSERT_GE(block.file, 0);
                break;
        }
        block.memory = static_cast<char*>(memory);
        write_source(block);
    }
    static void write_source(const Block& block) {
        if (block.memory) {
            write_pattern(block.memory, block.bytes / 8, block.contents);
            return;
        }
        std::vector<uint64_t> words(block.bytes / 8);
        write_pattern(words.data(), words.size(), block.contents);
        ASSERT_EQ(pwrite(block.file, words.data(), block.bytes, 0), static_cast<ssize_t>(block.bytes));
    }
    void register_blocks() {
        for (Block& block : blocks_) {
            sh_segment segment = SH_SEGMENT_INIT;
            segment.kind = block.memory ? SH_SOURCE_POINTER : SH_SOURCE_FILE;
            segment.pointer = block.memory;
            segment.file = block.memory ? 0 : block.file;
            segment.bytes = block.bytes;
            sh_block_desc desc = SH_BLOCK_DESC_INIT;
            desc.flags = block.changes ? SH_BLOCK_MUTABLE : 0;
            desc.bytes = block.bytes;
            desc.segments = &segment;
            desc.segment_count = 1;
            OK(sh_register_blocks(runtime_, &desc, 1, &block.id));
        }
    }

    bool one_in(unsigned n) { return random_() % n == 0; }
    void maybe_delay(sh_stream stream) {
        if (one_in(8)) {
            OK(sh_stream_launch(device_, stream, nullptr, nullptr, 1 + static_cast<int64_t>(random_() % 400'000)));
        }
        if (one_in(32)) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 200));
    }

    void use(size_t i) {
        // The engine's own changes of a block are ordered by the stream of the block.
        const size_t which = blocks_[i].changes ? i % 2 : random_() % 2;
        on_its_thread(which, [&] { use(i, streams_[which]); });
    }
    void on_its_thread(size_t which, const std::function<void()>& work) {
        if (threads_[which])
            threads_[which]->run(work);
        else
            work();
    }
    void use(size_t i, sh_stream stream) {
        Block& block = blocks_[i];
        const uint64_t address = acquire(block, stream);
        if (HasFatalFailure()) return;
        maybe_delay(stream);
        ASSERT_NO_FATAL_FAILURE(programs_->check(stream, address, block.bytes / 8, block.contents, i));
        compared_++;
        if (block.changes && one_in(3)) {
            maybe_delay(stream);
            OK(sh_mark_dirty(runtime_, block.id));
            block.contents = next_contents_++;
            ASSERT_NO_FATAL_FAILURE(programs_->write(stream, address, block.bytes / 8, block.contents));
        }
        if (one_in(200)) {
            std::vector<uint64_t> words(block.bytes / 8);
            OK(sh_read_block(runtime_, block.id, stream, 0, words.data(), block.bytes));
            ASSERT_EQ(count_wrong(words.data(), words.size(), block.contents), 0u) << "block " << i << ", read back";
        }
        maybe_delay(stream);
        OK(sh_release(runtime_, block.id, stream));
    }
    uint64_t acquire(const Block& block, sh_stream stream) {
        auto view = sh_sized<sh_view>();
        EXPECT_EQ(sh_acquire(runtime_, block.id, stream, 0, &view), SH_OK) << why();
        if (!view.address) ADD_FAILURE() << "no view";
        return reinterpret_cast<uint64_t>(view.address);
    }

    // The engine gives a block other weights.
    void change_source(size_t i) {
        Block& block = blocks_[i];
        if (block.changes) return;
        OK(sh_source_update_begin(runtime_, &block.id, 1));
        block.contents = next_contents_++;
        write_source(block);
        OK(sh_source_update_end(runtime_, &block.id, 1));
    }

    void expect_nothing_wrong() {
        for (size_t which : {0, 1}) on_its_thread(which, [&] { OK(sh_stream_synchronize(device_, streams_[which])); });
        const std::vector<uint64_t> wrong = programs_->wrong_words();
        for (size_t i = 0; i < kBlocks; i++) ASSERT_EQ(wrong[i], 0u) << "words of block " << i;
    }

    sh_device* device_ = nullptr;
    sh_runtime* runtime_ = nullptr;
    sh_stream streams_[2] = {};
    std::optional<Worker> threads_[2];
    std::unique_ptr<DevicePrograms> programs_;
    Block blocks_[kBlocks];
    uint64_t total_ = 0, next_contents_ = 1, compared_ = 0;
    std::mt19937 random_{26};
};

TEST_P(DelayedSteps, a_thousand) {
    const bool backward = GetParam().backward;
    std::vector<size_t> order;
    for (size_t i = 0; i < kBlocks; i++) order.push_back(i);
    for (size_t i = kBlocks; backward && i-- > 0;) order.push_back(i);
    std::vector<sh_use> uses(order.size(), SH_USE_INIT);
    for (size_t n = 0; n < order.size(); n++) {
        uses[n].block = blocks_[order[n]].id;
        uses[n].compute_ns = 50'000;
    }
    OK(sh_set_schedule(runtime_, uses.data(), uses.size()));
    const uint64_t steps = scaled(1000);
    const auto began = std::chrono::steady_clock::now();
    for (uint64_t k = 0; k < steps; k++) {
        SCOPED_TRACE(k);
        OK(sh_step_begin(runtime_, nullptr));
        for (const size_t i : order) {
            use(i);
            ASSERT_FALSE(HasFailure());
        }
        OK(sh_step_end(runtime_));
        if (one_in(50)) change_source(random_() % kBlocks);
        if (k % 250 == 249) expect_nothing_wrong();
        ASSERT_FALSE(HasFailure());
    }
    expect_nothing_wrong();
    OK(sh_write_back(runtime_, nullptr, 0));
    for (const Block& block : blocks_) {
        if (block.memory) {
            ASSERT_EQ(count_wrong(block.memory, block.bytes / 8, block.contents), 0u)
                << "a source of " << block.bytes << " bytes";
        }
    }
    EXPECT_EQ(compared_, steps * order.size());
    auto stats = sh_sized<sh_runtime_stats>();
    OK(sh_runtime_get_stats(runtime_, &stats));
    EXPECT_GT(stats.bytes_to_device, steps * total_ / 2);  // 60 % do not fit
    EXPECT_GT(stats.write_backs, steps);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    std::printf(
        "%llu steps of %.0f MiB, budget 40 %%: %llu views compared, %.1f GB to the device, %.1f GB back, in %.1f s\n",
        static_cast<unsigned long long>(steps), static_cast<double>(total_) / (1 << 20),
        static_cast<unsigned long long>(compared_), static_cast<double>(stats.bytes_to_device) / 1e9,
        static_cast<double>(stats.bytes_to_host) / 1e9, seconds);
}

INSTANTIATE_TEST_SUITE_P(Ways, DelayedSteps,
                         testing::Values(Way{"forward", false, false}, Way{"forward_backward", true, false},
                                         Way{"forward_on_threads", false, true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace stagehand::test
