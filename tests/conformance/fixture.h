// The fixture of the suite: an open device, and helpers that every test needs.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <stagehand/backend.h>

#include "backend_spec.h"

// Ends the test with the backend's text if the call fails.
#define SH_OK_OR_END(call) ASSERT_GE((call), 0) << backend().last_error()
#define SH_EXPECT_OK(call) EXPECT_GE((call), 0) << backend().last_error()
// Expects that the call fails and that the backend has a text for it.
#define SH_EXPECT_FAILURE(call)                   \
    do {                                          \
        EXPECT_LT((call), 0);                     \
        EXPECT_STRNE(backend().last_error(), ""); \
    } while (0)

namespace conformance {

// Differences between backends that their flags do not show. All other behaviour is the same for all backends.
struct Quirks {
    bool checks_handles = true;      // stale and foreign handles, and misuse of pages, are errors rather than undefined
    bool exact_accounting = true;    // free memory changes only by the requested bytes
    uint64_t many_pages = 4096;      // a number of pages that is large for it
    int64_t time_unit_ns = 2000000;  // a duration well above what a command costs
};
Quirks quirks_of(const BackendSpec& spec, const sh_backend_device_info& info);

// Pages that are mapped at a range of their own, or memory without pages if the device does not map pages.
struct Memory {
    uint64_t address = 0;
    uint64_t bytes = 0;
    uint64_t page_bytes = 0;
    std::vector<sh_backend_page> pages;
};

class Conformance : public testing::TestWithParam<BackendSpec> {
protected:
    void SetUp() override;
    // Frees what the helpers made, and checks that the device holds as much memory as before.
    void TearDown() override;

    const sh_backend& backend() const { return *backend_; }
    sh_backend_device* device() const { return device_; }
    const sh_backend_device_info& info() const { return info_; }
    const Quirks& quirks() const { return quirks_; }
    bool has(uint32_t flag) const { return (info_.flags & flag) != 0; }
    bool has_contents() const { return !has(SH_BACKEND_CONTENTLESS); }
    uint64_t page() const { return info_.granularity_bytes; }

    // TearDown() frees this. Several threads may call it.
    sh_stream new_stream();
    sh_backend_event new_event(bool timing = false);
    Memory new_memory(uint64_t bytes, uint64_t page_bytes = 0);
    uint64_t new_range(uint64_t bytes);
    std::vector<sh_backend_page> new_pages(uint64_t count, uint64_t page_bytes = 0);
    void map(uint64_t address, const std::vector<sh_backend_page>& pages);
    void unmap(uint64_t address, uint64_t count);

    // Copies in a stream of the fixture, and returns when the copy has finished.
    void write(uint64_t address, const std::vector<uint8_t>& bytes);
    std::vector<uint8_t> read(uint64_t address, uint64_t bytes);
    // Expects these contents if the device has contents.
    void expect_contents(uint64_t address, const std::vector<uint8_t>& bytes);

    bool is_done(sh_backend_event event);
    uint64_t free_bytes();

private:
    struct Range {
        uint64_t address;
        uint64_t bytes;
    };
    struct Pages {
        uint64_t page_bytes;
        std::vector<sh_backend_page> pages;
    };
    struct Mapping {
        uint64_t address;
        uint64_t page_bytes;
        uint64_t count;
    };

    const sh_backend* backend_ = nullptr;
    sh_backend_device* device_ = nullptr;
    sh_backend_device_info info_ = {};
    Quirks quirks_;
    uint64_t free_at_start_ = 0;
    sh_stream copies_ = 0;

    std::mutex mutex_;
    std::vector<sh_stream> streams_;
    std::vector<sh_backend_event> events_;
    std::vector<Range> ranges_;
    std::vector<Pages> pages_;
    std::vector<Mapping> mappings_;
};

// Holds a stream: work that is queued behind the hold does not run until release(). On a device in virtual time, the
// stream is busy for a long time instead, and a wait for it passes that time.
class Hold {
public:
    // The constructor throws nothing, so status() returns its failure.
    Hold(const sh_backend& backend, sh_backend_device* device, const sh_backend_device_info& info, sh_stream stream);
    ~Hold() { release(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

    sh_status status() const { return status_; }
    void release();

private:
    struct Gate {
        std::mutex mutex;
        std::condition_variable opened;
        bool open = false;
    };
    static void wait_at(void* gate);

    std::unique_ptr<Gate> gate_ = std::make_unique<Gate>();
    const sh_backend& backend_;
    sh_backend_device* device_;
    sh_stream stream_;
    sh_status status_ = SH_OK;
};

// Pinned host memory. A copy of unpinned memory may block the call, and the call would never return if the stream is
// held.
class PinnedBytes {
public:
    PinnedBytes(const sh_backend& backend, sh_backend_device* device, const std::vector<uint8_t>& bytes);
    ~PinnedBytes();
    PinnedBytes(const PinnedBytes&) = delete;
    PinnedBytes& operator=(const PinnedBytes&) = delete;

    uint8_t* data() const { return memory_; }
    std::vector<uint8_t> bytes() const { return {memory_, memory_ + size_}; }

private:
    const sh_backend& backend_;
    sh_backend_device* device_;
    uint64_t size_;
    uint8_t* memory_;
};
#define SH_PINNED(name, contents) const ::conformance::PinnedBytes name(backend(), device(), contents)

// Holds `stream` under the name `hold`, or skips the test if the backend cannot run functions in streams.
#define SH_HOLD(hold, stream)                                                                                    \
    ::conformance::Hold hold(backend(), device(), info(), stream);                                               \
    if (hold.status() == SH_ERROR_UNSUPPORTED) GTEST_SKIP() << "this backend runs no host functions in streams"; \
    ASSERT_GE(hold.status(), 0) << backend().last_error()

// Returns bytes that differ from place to place and from seed to seed.
std::vector<uint8_t> pattern(uint64_t bytes, uint64_t seed);

}  // namespace conformance
