// Engine: the base of the core's tests. A device with options, and models whose blocks have recognisable contents and
// every kind of source. Each use compares every byte with its expected value, on the calling thread, or on a stream
// when the work runs there.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <stagehand/stagehand.h>

#include "device_bytes.h"
#include "device_under_test.h"
#include "sources.h"

namespace stagehand::test {

// Returns the text of this thread's last failure.
std::string why();
// Whether the build has helpers.
bool has_helpers();
// They help at once, also after copies of their own.
void hurry_helpers();
// For a call whose status does not matter to the test.
inline void ignore(sh_status) {}

#define SUCCEEDS(call) ASSERT_EQ((call), SH_OK) << ::stagehand::test::why()
#define EXPECT_SUCCEEDS(call) EXPECT_EQ((call), SH_OK) << ::stagehand::test::why()

// The status of a call that is refused, and what its text has to say.
#define EXPECT_REFUSED(call, status, text) EXPECT_TRUE(::stagehand::test::is_refused((call), (status), (text)))
testing::AssertionResult is_refused(sh_status found, sh_status wanted, const std::string& text);

// Tests in virtual time plan for minutes under ThreadSanitizer, which has nothing to see in one thread.
#if defined(__SANITIZE_THREAD__)
constexpr bool kOneThreadOnly = true;
#else
constexpr bool kOneThreadOnly = false;
#endif

struct DeviceSettings {
    std::string name = device_under_test();
    std::string options = "capacity=256MiB;staging_piece=16KiB;poison=1";  // for the host backend only
    uint64_t budget_bytes = 64 * kPage;
    uint64_t page_bytes = kPage;
    uint64_t link_bytes_per_second = 4'000'000'000 * kPage / 4096;  // in proportion, so that plans are alike
    uint64_t staging_bytes = 64 * kPage;
    uint32_t staging_threads = 2;
    bool map_pages = true;
    std::string helpers = {};
    bool helps = false;
};

// An open device, closed at the end.
class TestDevice {
public:
    explicit TestDevice(const DeviceSettings& settings = {});
    ~TestDevice();
    TestDevice(const TestDevice&) = delete;
    TestDevice& operator=(const TestDevice&) = delete;

    sh_device* get() const { return device_; }
    DeviceBytes& bytes() { return *bytes_; }
    sh_stream stream();  // a new one, destroyed with the device
    sh_memory_info memory() const;
    void synchronize();  // all streams that stream() gave, and all uses

private:
    sh_device* device_ = nullptr;
    bool ordered_ = false;
    std::unique_ptr<DeviceBytes> bytes_;
    std::vector<sh_stream> streams_;
};

struct BlockSpec {
    uint64_t bytes = 0;
    Origin origin = Origin::pinned;
    uint32_t flags = 0;
    sh_load_fn on_load = nullptr;
    void* user_data = nullptr;
    std::string name = {};
};

// These throw if their call fails.
sh_block register_block(sh_runtime* runtime, const sh_segment& segment, uint32_t flags = 0);
sh_view held_view(sh_runtime* runtime, sh_block block, sh_stream stream = SH_STREAM_HOST, uint32_t flags = 0);
void let_go(sh_runtime* runtime, sh_block block, sh_stream stream = SH_STREAM_HOST);

// The options of a runtime that tests set. 0: the library's choice.
struct RuntimeSettings {
    const char* name = nullptr;
    uint64_t max_bytes = 0, unordered_bytes = 0;
    uint32_t max_held = 0;
    uint64_t share_wait_ns = 0;

    sh_runtime_options options() const;
};

// A runtime with blocks, and the expected contents of each block. Uses whose bytes were wrong fail the test at the end.
// Functions without a status throw if their call fails.
class Model {
public:
    Model(TestDevice& device, const std::vector<BlockSpec>& specs, const RuntimeSettings& settings = {});
    ~Model();
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    sh_runtime* runtime() const { return runtime_; }
    TestDevice& test_device() const { return device_; }
    sh_device* device() const { return device_.get(); }
    sh_stream stream() { return device_.stream(); }
    sh_memory_info memory() const { return device_.memory(); }
    DeviceBytes& bytes() { return device_.bytes(); }
    void synchronize() { device_.synchronize(); }
    size_t size() const { return ids_.size(); }
    sh_block id(size_t i) const { return ids_[i]; }
    const std::vector<sh_block>& ids() const { return ids_; }
    Source& source(size_t i) { return *sources_[i]; }
    uint64_t bytes(size_t i) const { return specs_[i].bytes; }
    uint64_t total_bytes() const;
    std::shared_ptr<const std::vector<uint8_t>> truth(size_t i) const { return truth_[i]; }
    void set_truth(size_t i, std::vector<uint8_t> bytes) {
        truth_[i] = std::make_shared<const std::vector<uint8_t>>(std::move(bytes));
    }

    // Registers one more block.
    sh_status add(const BlockSpec& spec);
    sh_status remove(size_t i);  // unregisters; the place stays, empty
    // Writes the contents of another version to the source.
    void change(size_t i, uint64_t version);
    sh_status schedule(const std::vector<size_t>& order, uint64_t compute_ns = 1000);

    sh_view acquire(size_t i, sh_stream stream = SH_STREAM_HOST, uint32_t flags = 0);
    void release(size_t i, sh_stream stream = SH_STREAM_HOST);
    void begin_step();
    void end_step();
    void invalidate(size_t i);
    sh_scope* keep_resident();
    sh_scope* begin_guest(const sh_guest_options& options = SH_GUEST_OPTIONS_INIT);
    // Makes one use: acquires, compares on the stream or here, and releases. Returns the first failure.
    sh_status use(size_t i, sh_stream stream = SH_STREAM_HOST, uint32_t flags = 0, int64_t busy_ns = 0);
    // Compares when the stream reaches this work. The caller releases the view after this call.
    sh_status compare(size_t i, const sh_view& view, sh_stream stream, int64_t busy_ns = 0);
    // The engine changes all bytes of a mutable block that it holds, in the stream or on the calling thread, and marks
    // the block dirty.
    sh_status overwrite(size_t i, const sh_view& view, uint64_t version, sh_stream stream = SH_STREAM_HOST);
    // Makes one use that compares a mutable block and changes all its bytes.
    void rewrite(size_t i, uint64_t version, sh_stream stream = SH_STREAM_HOST);
    // Makes a step that uses these blocks in this order.
    sh_status step(const std::vector<size_t>& order, sh_stream stream = SH_STREAM_HOST, int64_t busy_ns = 0);

    uint64_t compared() const { return compared_.load(); }

    sh_runtime_stats stats() const;
    sh_block_state state(size_t i) const;
    sh_plan_info plan(uint64_t dry_run_budget = 0);

    void destroy();  // the runtime, before the model goes

private:
    void register_all(const std::vector<BlockSpec>& specs);
    void note(size_t block, const uint8_t* at, const std::vector<uint8_t>& truth);

    TestDevice& device_;
    sh_runtime* runtime_ = nullptr;
    std::vector<BlockSpec> specs_;
    std::vector<std::unique_ptr<Source>> sources_;
    std::vector<std::shared_ptr<const std::vector<uint8_t>>> truth_;
    std::vector<sh_block> ids_;
    std::atomic<uint64_t> compared_{0}, wrong_{0};
    std::mutex mutex_;
    std::string first_wrong_;
};

struct OwnDevice {
    TestDevice own_device;
};
// A device with one model on it, which uses its blocks in this order if one is given.
class SoloModel : private OwnDevice, public Model {
public:
    SoloModel(const DeviceSettings& device, const std::vector<BlockSpec>& specs, const std::vector<size_t>& order = {},
              const RuntimeSettings& settings = {});
};

// Orders of use.
std::vector<size_t> forward(size_t count);
std::vector<size_t> forward_backward(size_t count);

// Describes blocks of these sizes in bytes that are alike otherwise.
std::vector<BlockSpec> blocks_of(const std::vector<uint64_t>& bytes, Origin origin = Origin::pinned,
                                 uint32_t flags = 0);
std::vector<BlockSpec> equal_blocks(size_t count, uint64_t bytes, Origin origin = Origin::pinned, uint32_t flags = 0);
// Describes blocks from one byte to a few pages. The larger blocks lie between smaller ones.
std::vector<BlockSpec> unequal_blocks(size_t count, Origin origin);

}  // namespace stagehand::test
