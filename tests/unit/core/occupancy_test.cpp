// sh_alloc(), sh_pause() and sh_resume(): same addresses, same bytes, and every error.
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "occupancy_fixture.h"

namespace stagehand::test {
namespace {

TEST_F(OccupancyTest, BytesComeBackAtTheSameAddresses) {
    open();
    const std::vector<uint64_t> sizes = {1, 700, 64'000, 2 * kMiB, 5 * kMiB + 4097, 9 * kMiB};
    std::vector<uint64_t> addresses;
    for (uint64_t i = 0; i < sizes.size(); i++) addresses.push_back(filled(i, sizes[i]));
    for (uint64_t cycle = 1; cycle <= 3; cycle++) {
        auto out = sh_sized<sh_occupancy_change>(), back = sh_sized<sh_occupancy_change>();
        const uint64_t held = info().device_bytes;
        SUCCEEDS(pause({}, 0, SH_CONTENTS_DEFAULT, &out));
        EXPECT_EQ(info().state, uint32_t(SH_OCCUPANCY_RELEASED));
        EXPECT_EQ(on_device().current_bytes, 0u) << "the driver has all memory";
        EXPECT_EQ(out.device_bytes, held);
        EXPECT_EQ(out.copied_bytes, held);
        EXPECT_EQ(out.tag_count, 1u);
        EXPECT_EQ(info().staged_bytes, held);
        SUCCEEDS(resume({}, 0, &back));
        EXPECT_EQ(info().state, uint32_t(SH_OCCUPANCY_RUNNING));
        EXPECT_EQ(back.device_bytes, held);
        EXPECT_EQ(back.copied_bytes, held);
        EXPECT_EQ(info().staged_bytes, 0u);
        EXPECT_EQ(info("default").cycles, cycle);
        for (uint64_t i = 0; i < sizes.size(); i++) {
            EXPECT_EQ(read(addresses[i], sizes[i]), contents(i + 10 * (cycle - 1), sizes[i])) << i;
            write(addresses[i], contents(i + 10 * cycle, sizes[i]));
        }
    }
}

TEST_F(OccupancyTest, TagsLeaveAloneAndTogether) {
    open();
    const uint64_t weights = filled(1, 3 * kMiB, "weights"), cache = filled(2, 2 * kMiB, "kv_cache"),
                   rest = filled(3, kMiB);
    SUCCEEDS(pause({"weights"}));
    EXPECT_EQ(info("weights").state, uint32_t(SH_OCCUPANCY_RELEASED));
    EXPECT_EQ(info("kv_cache").state, uint32_t(SH_OCCUPANCY_RUNNING));
    EXPECT_EQ(info().state, uint32_t(SH_OCCUPANCY_MIXED));
    EXPECT_EQ(read(cache, 2 * kMiB), contents(2, 2 * kMiB));
    SUCCEEDS(pause());
    EXPECT_EQ(info().state, uint32_t(SH_OCCUPANCY_RELEASED));
    SUCCEEDS(resume({"kv_cache", "weights", "kv_cache"}));
    EXPECT_EQ(info("default").state, uint32_t(SH_OCCUPANCY_RELEASED));
    EXPECT_EQ(read(weights, 3 * kMiB), contents(1, 3 * kMiB));
    EXPECT_EQ(read(cache, 2 * kMiB), contents(2, 2 * kMiB));
    SUCCEEDS(resume());
    EXPECT_EQ(read(rest, kMiB), contents(3, kMiB));
    EXPECT_EQ(info().cycles, 3u);
}

TEST_F(OccupancyTest, ContentsAreStagedDroppedOrZero) {
    open();
    const uint64_t kept = filled(1, 3 * kMiB, "all", SH_CONTENTS_STAGE),
                   lost = filled(2, 3 * kMiB, "all", SH_CONTENTS_DROP),
                   zero = filled(3, 3 * kMiB, "all", SH_CONTENTS_ZERO),
                   small = filled(4, 1000, "all", SH_CONTENTS_ZERO);
    auto out = sh_sized<sh_occupancy_change>();
    SUCCEEDS(pause({"all"}, 0, SH_CONTENTS_DEFAULT, &out));
    EXPECT_EQ(out.copied_bytes, 3 * kMiB);
    EXPECT_EQ(info("all").host_bytes, 3 * kMiB);
    EXPECT_EQ(on_device().current_bytes, 0u);
    SUCCEEDS(resume());
    EXPECT_EQ(read(kept, 3 * kMiB), contents(1, 3 * kMiB));
    EXPECT_EQ(read(zero, 3 * kMiB), std::vector<uint8_t>(3 * kMiB, 0));
    EXPECT_EQ(read(small, 1000), std::vector<uint8_t>(1000, 0));
    write(lost, contents(5, 3 * kMiB));
    EXPECT_EQ(read(lost, 3 * kMiB), contents(5, 3 * kMiB));
    // The pause may say something else, for this time.
    SUCCEEDS(pause({}, 0, SH_CONTENTS_STAGE));
    SUCCEEDS(resume());
    EXPECT_EQ(read(lost, 3 * kMiB), contents(5, 3 * kMiB));
    SUCCEEDS(pause({}, 0, SH_CONTENTS_ZERO, &out));
    EXPECT_EQ(out.copied_bytes, 0u);
    SUCCEEDS(resume());
    EXPECT_EQ(read(kept, 3 * kMiB), std::vector<uint8_t>(3 * kMiB, 0));
}

TEST_F(OccupancyTest, ACallThatRepeatsLeavesTagsOut) {
    open();
    const uint64_t address = filled(1, kMiB, "weights");
    SUCCEEDS(resume({"weights"}, SH_OCCUPANCY_REPEAT));
    SUCCEEDS(pause({"weights"}));
    auto change = sh_sized<sh_occupancy_change>();
    SUCCEEDS(pause({"weights"}, SH_OCCUPANCY_REPEAT, SH_CONTENTS_DEFAULT, &change));
    EXPECT_EQ(change.tag_count, 0u);
    SUCCEEDS(pause());
    SUCCEEDS(resume({"weights"}, 0, &change));
    EXPECT_EQ(change.tag_count, 1u);
    EXPECT_EQ(read(address, kMiB), contents(1, kMiB));
    filled(2, kMiB, "other");
    EXPECT_EQ(pause({"weights", "none"}), SH_ERROR_NOT_FOUND);
    EXPECT_EQ(info().state, uint32_t(SH_OCCUPANCY_RUNNING)) << "one wrong tag, and none changes";
    const std::string longest(63, 'x');
    SUCCEEDS(try_alloc(1, longest.c_str(), 0, &change.device_bytes));
    EXPECT_EQ(info(longest.c_str()).tag, longest);
    SUCCEEDS(sh_free(device_, 0));
}

TEST_F(OccupancyTest, MemoryMayBeFreedWhileItIsReleased) {
    open();
    const uint64_t first = filled(1, 3 * kMiB), second = filled(2, 2 * kMiB), small = filled(3, 5000),
                   other = filled(4, 6000);
    SUCCEEDS(pause());
    const uint64_t kept = info().host_bytes;
    SUCCEEDS(sh_free(device_, first));
    SUCCEEDS(sh_free(device_, small));
    EXPECT_EQ(info().host_bytes, kept - 3 * kMiB);
    EXPECT_EQ(info().allocations, 2u);
    SUCCEEDS(resume());
    EXPECT_EQ(read(second, 2 * kMiB), contents(2, 2 * kMiB));
    EXPECT_EQ(read(other, 6000), contents(4, 6000));
    EXPECT_EQ(info().device_bytes, 4 * kMiB);
    SUCCEEDS(pause());
    SUCCEEDS(sh_free(device_, second));
    SUCCEEDS(sh_free(device_, other));
    SUCCEEDS(resume());
    EXPECT_EQ(info().bytes + info().device_bytes + info().host_bytes + info().staged_bytes, 0u);
    EXPECT_EQ(on_device().pages, 0u);
    EXPECT_EQ(on_device().pinned_bytes, 0u);
    EXPECT_EQ(memory().used_bytes, 0u);
}

TEST_F(OccupancyTest, SmallAllocationsShareMemory) {
    open();
    std::set<uint64_t> addresses;
    for (uint64_t i = 0; i < 100; i++) addresses.insert(filled(i, 1000 + i, "small"));
    EXPECT_EQ(info("small").device_bytes, 2 * kMiB);
    uint64_t before = 0;
    for (const uint64_t address : addresses) {
        EXPECT_EQ(address % 512, 0u);
        EXPECT_GE(address, before + 1000);
        before = address;
    }
    // What was freed is used again, and a chunk without allocations goes back to the driver.
    const uint64_t freed = *std::next(addresses.begin(), 50);
    SUCCEEDS(sh_free(device_, freed));
    EXPECT_EQ(alloc(1024, "small"), freed);
    EXPECT_NE(alloc(1024, "small", SH_CONTENTS_ZERO) / (2 * kMiB), freed / (2 * kMiB)) << "other contents";
    EXPECT_EQ(info("small").device_bytes, 4 * kMiB);
    SUCCEEDS(pause());
    SUCCEEDS(resume());
    for (const uint64_t address : addresses) SUCCEEDS(sh_free(device_, address));
    EXPECT_EQ(info("small").device_bytes, 2 * kMiB);
}

TEST_F(OccupancyTest, HostMemoryIsKeptUntilItIsTrimmed) {
    open();
    filled(1, 3 * kMiB);
    filled(2, 1000);
    EXPECT_EQ(info().host_bytes, 0u);
    SUCCEEDS(pause());
    EXPECT_EQ(info().host_bytes, 5 * kMiB);
    EXPECT_EQ(info().pinned_bytes, 5 * kMiB);
    EXPECT_EQ(memory().pinned_bytes, 5 * kMiB);
    uint64_t freed = 1;
    SUCCEEDS(sh_occupancy_trim(device_, &freed));
    EXPECT_EQ(freed, 0u) << "it has the contents";
    SUCCEEDS(resume());
    EXPECT_EQ(on_device().pinned_bytes, 5 * kMiB);
    SUCCEEDS(pause());
    EXPECT_EQ(on_device().pinned_bytes, 5 * kMiB);
    SUCCEEDS(resume());
    SUCCEEDS(sh_occupancy_trim(device_, &freed));
    EXPECT_EQ(freed, 5 * kMiB);
    EXPECT_EQ(on_device().pinned_bytes, 0u);
    EXPECT_EQ(memory().pinned_bytes, 0u);
    SUCCEEDS(sh_occupancy_trim(device_, nullptr));
}

TEST_F(OccupancyTest, MemoryThatCannotBePinnedServesToo) {
    open("capacity=64MiB;pin_limit=1MiB");
    const uint64_t address = filled(1, 5 * kMiB);
    SUCCEEDS(pause());
    EXPECT_LE(info().pinned_bytes, kMiB);
    EXPECT_EQ(info().host_bytes, 5 * kMiB);
    SUCCEEDS(resume());
    EXPECT_EQ(read(address, 5 * kMiB), contents(1, 5 * kMiB));
}

TEST_F(OccupancyTest, DevicesWithoutPagesAllocateButDoNotPause) {
    open("capacity=64MiB;map_pages=0");
    const uint64_t large = filled(1, 3 * kMiB), small = filled(2, 1000);
    EXPECT_EQ(info().device_bytes, 5 * kMiB);
    EXPECT_REFUSED(pause(), SH_ERROR_UNSUPPORTED, "does not map memory by pages");
    EXPECT_EQ(info().state, uint32_t(SH_OCCUPANCY_RUNNING));
    EXPECT_EQ(read(large, 3 * kMiB), contents(1, 3 * kMiB));
    SUCCEEDS(sh_free(device_, large));
    SUCCEEDS(sh_free(device_, small));
    EXPECT_EQ(memory().used_bytes, 0u);
}

TEST_F(OccupancyTest, ClosingTheDeviceFreesWhatIsLeft) {
    open();
    filled(1, 3 * kMiB, "runs");
    filled(2, 1000, "released");
    SUCCEEDS(pause({"released"}));
    sh_device* const closed = device_;
    sh_device_close(std::exchange(device_, nullptr));
    EXPECT_TRUE(host::all_memory_statistics().empty());
    EXPECT_EQ(sh_free(closed, 4096), SH_ERROR_INVALID_HANDLE);
    open();
    EXPECT_EQ(info().allocations, 0u);
}

TEST_F(OccupancyTest, TagsAreListedByName) {
    open();
    for (const char* tag : {"weights", "kv_cache", "graphs"}) filled(1, 1000, tag);
    SUCCEEDS(pause({"kv_cache"}));
    sh_occupancy_info infos[2] = {sh_sized<sh_occupancy_info>(), sh_sized<sh_occupancy_info>()};
    uint64_t count = 0;
    SUCCEEDS(sh_occupancy_list(device_, infos, 2, &count));
    EXPECT_EQ(count, 3u);
    EXPECT_STREQ(infos[0].tag, "graphs");
    EXPECT_STREQ(infos[1].tag, "kv_cache");
    EXPECT_EQ(infos[1].state, uint32_t(SH_OCCUPANCY_RELEASED));
    EXPECT_EQ(infos[1].bytes, 1000u);
    // An allocation that fails leaves no tag behind.
    uint64_t address = 0;
    EXPECT_EQ(try_alloc(uint64_t(1) << 60, "huge", 0, &address), SH_ERROR_OUT_OF_DEVICE_MEMORY);
    EXPECT_EQ(try_alloc(100 * kMiB, "huge", 0, &address), SH_ERROR_BUDGET);
    SUCCEEDS(sh_occupancy_list(device_, nullptr, 0, &count));
    EXPECT_EQ(count, 3u);
}

// Work that is on a stream until the test lets it go on. It then writes.
struct LateWriter {
    uint64_t address = 0;
    std::atomic<bool> go{false};

    static void run(void* self) {
        LateWriter& writer = *static_cast<LateWriter*>(self);
        while (!writer.go) std::this_thread::sleep_for(std::chrono::microseconds(100));
        std::memset(reinterpret_cast<void*>(writer.address), 0x5a, kMiB);
    }
};

TEST_F(OccupancyTest, PauseWaitsForWorkInFlight) {
    open();
    LateWriter writer;
    writer.address = filled(1, 3 * kMiB, "weights");
    filled(2, kMiB, "other");
    sh_stream stream = 0;
    SUCCEEDS(sh_stream_create(device_, &stream));
    SUCCEEDS(sh_stream_launch(device_, stream, LateWriter::run, &writer, 0));
    std::thread pauses([&] { EXPECT_SUCCEEDS(pause({"weights"})); });
    while (info("weights").state != SH_OCCUPANCY_RELEASING) std::this_thread::yield();
    EXPECT_EQ(pause({"other"}, SH_OCCUPANCY_NO_WAIT), SH_ERROR_BUSY);
    EXPECT_EQ(resume({"other"}, SH_OCCUPANCY_NO_WAIT), SH_ERROR_BUSY);
    EXPECT_EQ(info("weights").device_bytes, 3 * kMiB);
    writer.go = true;
    pauses.join();
    EXPECT_EQ(info("weights").state, uint32_t(SH_OCCUPANCY_RELEASED));
    SUCCEEDS(resume({"weights"}));
    EXPECT_EQ(read(writer.address, kMiB), std::vector<uint8_t>(kMiB, 0x5a));
    sh_stream_destroy(device_, stream);
}

TEST_F(OccupancyTest, TheLogTellsWhereTheTimeOfACallHasGone) {
    struct Log {
        std::mutex mutex;
        std::string text;
        static void add(int32_t, const char* message, void* self) {
            std::lock_guard lock(static_cast<Log*>(self)->mutex);
            static_cast<Log*>(self)->text += message + std::string("\n");
        }
    } log;
    open();
    filled(1, 3 * kMiB);
    SUCCEEDS(sh_set_log(SH_LOG_DEBUG, Log::add, &log));
    SUCCEEDS(pause());
    SUCCEEDS(resume());
    SUCCEEDS(sh_set_log(0, nullptr, nullptr));
    for (const std::string call : {"sh_pause() took ", "sh_resume() took "}) {
        const size_t place = log.text.find(call), begin = place + call.size();
        ASSERT_NE(place, std::string::npos) << log.text;
        std::istringstream line(log.text.substr(begin, log.text.find('\n', begin) - begin));
        double whole = 0;
        int parts = 0;
        line >> whole;
        for (std::string word; line >> word;) {
            if (word.find('.') == std::string::npos) continue;
            EXPECT_LE(std::stod(word), whole) << line.str();
            parts++;
        }
        EXPECT_EQ(parts, 8) << line.str();
    }
}

}  // namespace
}  // namespace stagehand::test
