// A pause and a resume whose contents cross the links of several devices.
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "core/device/helpers.h"
#include "occupancy_fixture.h"
#include "transfer/bond/bond.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kContents = 40 * kMiB;

class OccupancyHelpers : public OccupancyTest {
protected:
    void SetUp() override {
        if (!on_host_backend()) GTEST_SKIP() << "it needs several devices";
        if (devices_without_pages()) GTEST_SKIP() << "memory cannot be paused";
        least_ = transfer::Bond::least_bytes();
        transfer::Bond::set_least_bytes(64 << 10);
        core::Helpers::set_quiet_ns(0);
    }
    void TearDown() override {
        neighbours_.clear();
        OccupancyTest::TearDown();
        if (!least_) return;
        transfer::Bond::set_least_bytes(least_);
        core::Helpers::set_quiet_ns(100'000'000);
    }

    // A device with a link of so many GB/s.
    sh_device* opened(const std::string& name, uint64_t speed, uint64_t budget, const char* helpers, uint32_t flags) {
        const std::string backend = "capacity=256MiB;poison=1;latency=1us;bandwidth=" + std::to_string(speed) + "GB/s";
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.backend_options = backend.c_str();
        options.budget_bytes = budget;
        options.link_bytes_per_second = speed * 1'000'000'000;
        options.helpers = helpers;
        options.device_flags = flags;
        sh_device* device = nullptr;
        EXPECT_SUCCEEDS(sh_device_open(name.c_str(), &options, &device));
        return device;
    }
    void add_neighbour(const std::string& name, uint64_t speed, uint64_t budget = 128 * kMiB) {
        neighbours_.emplace_back(opened(name, speed, budget, nullptr, SH_HELPS_OTHERS), sh_device_close);
    }
    void open_helped(const char* helpers, uint64_t speed = 1) {
        device_ = opened("host:0", speed, 128 * kMiB, helpers, 0);
    }
    uint64_t used(size_t neighbour) const {
        sh_memory_info info = SH_MEMORY_INFO_INIT;
        EXPECT_SUCCEEDS(sh_device_get_memory(neighbours_[neighbour].get(), &info));
        return info.used_bytes;
    }
    static uint64_t peak_of_neighbour() { return host::all_memory_statistics().at(0).peak_bytes; }
    static double helped_part(const sh_occupancy_change& change) {
        EXPECT_EQ(change.copied_bytes, kContents);
        return static_cast<double>(change.helped_bytes) / static_cast<double>(kContents);
    }

    std::vector<std::unique_ptr<sh_device, void (*)(sh_device*)>> neighbours_;
    uint64_t least_ = 0;
};

TEST_F(OccupancyHelpers, ContentsLeaveAndComeBackOverAllLinks) {
    add_neighbour("host:1", 1);
    add_neighbour("host:2", 2);
    open_helped("host:1,host:2");
    const uint64_t memory = filled(1, kContents);
    for (uint64_t cycle = 0; cycle < 2; cycle++) {
        write(memory, contents(cycle, kContents));
        sh_occupancy_change gone = SH_OCCUPANCY_CHANGE_INIT, back = SH_OCCUPANCY_CHANGE_INIT;
        SUCCEEDS(pause({}, 0, SH_CONTENTS_DEFAULT, &gone));
        EXPECT_EQ(used(0) + used(1), 0u) << "a helper keeps its memory between the calls";
        SUCCEEDS(resume({}, 0, &back));
        EXPECT_EQ(used(0) + used(1), 0u);
        EXPECT_EQ(read(memory, kContents), contents(cycle, kContents)) << "cycle " << cycle;
        EXPECT_NEAR(helped_part(gone), 0.75, 0.1) << "links of 1, 1 and 2 GB/s";
        EXPECT_NEAR(helped_part(back), 0.75, 0.1);
    }
    SUCCEEDS(sh_free(device_, memory));
}

// Helpers bring more than packing does.
TEST_F(OccupancyHelpers, ContentsOfAFormatLeaveAsTheyAre) {
    add_neighbour("host:1", 1);
    open_helped("host:1");
    sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
    options.format = SH_FORMAT_BF16;
    uint64_t memory = 0;
    SUCCEEDS(sh_alloc(device_, kContents, &options, &memory));
    write(memory, contents(1, kContents));
    sh_occupancy_change gone = SH_OCCUPANCY_CHANGE_INIT, back = SH_OCCUPANCY_CHANGE_INIT;
    SUCCEEDS(pause({}, 0, SH_CONTENTS_DEFAULT, &gone));
    SUCCEEDS(resume({}, 0, &back));
    EXPECT_EQ(gone.packed_bytes + back.packed_bytes, 0u);
    EXPECT_NEAR(helped_part(gone), 0.5, 0.1);
    EXPECT_NEAR(helped_part(back), 0.5, 0.1);
    neighbours_.clear();  // nobody helps any more: what changes leaves packed, the rest comes as it left
    std::vector<uint8_t> truth = contents(1, kContents);
    truth[3 * kPart] ^= 1;
    write(memory, truth);
    SUCCEEDS(pause({}, 0, SH_CONTENTS_DEFAULT, &gone));
    SUCCEEDS(resume({}, 0, &back));
    EXPECT_EQ(gone.packed_bytes, kPart);
    EXPECT_EQ(back.packed_bytes, kPart);
    EXPECT_EQ(back.copied_bytes, kContents);
    EXPECT_EQ(read(memory, kContents), truth);
    SUCCEEDS(sh_free(device_, memory));
}

// Large and small allocations of two tags, of which some pages change between the cycles.
TEST_F(OccupancyHelpers, EveryPieceIsRight) {
    add_neighbour("host:1", 1);
    open_helped("auto");
    struct Piece {
        uint64_t address;
        std::vector<uint8_t> bytes;
    };
    std::vector<Piece> pieces;
    for (const uint64_t bytes : {kMiB / 2, 3 * kMiB, 2 * kMiB + 4096, 13 * kMiB, uint64_t(1000), 7 * kMiB})
        pieces.push_back({filled(bytes, bytes, pieces.size() % 2 ? "odd" : "even"), contents(bytes, bytes)});
    for (uint64_t cycle = 0; cycle < 3; cycle++) {
        sh_occupancy_change gone = SH_OCCUPANCY_CHANGE_INIT;
        SUCCEEDS(pause(cycle == 1 ? std::vector<const char*>{"even"} : std::vector<const char*>{}, 0,
                       SH_CONTENTS_DEFAULT, &gone));
        EXPECT_EQ(gone.helped_bytes > 0, gone.copied_bytes >= 8 * kMiB) << "less is not worth it";
        SUCCEEDS(resume());
        for (Piece& piece : pieces) {
            EXPECT_EQ(read(piece.address, piece.bytes.size()), piece.bytes) << "cycle " << cycle;
            for (size_t i = cycle * 300; i < piece.bytes.size(); i += 5 * kMiB) piece.bytes[i]++;
            write(piece.address, piece.bytes);
        }
    }
    for (const Piece& piece : pieces) SUCCEEDS(sh_free(device_, piece.address));
}

TEST_F(OccupancyHelpers, ADeviceThatConsentsLaterHelpsTheNextCall) {
    open_helped("auto");
    const uint64_t memory = filled(1, kContents);
    sh_occupancy_change gone = SH_OCCUPANCY_CHANGE_INIT, back = SH_OCCUPANCY_CHANGE_INIT;
    SUCCEEDS(pause({}, 0, SH_CONTENTS_DEFAULT, &gone));
    EXPECT_EQ(gone.helped_bytes, 0u);
    add_neighbour("host:1", 1);
    SUCCEEDS(resume({}, 0, &back));
    EXPECT_NEAR(helped_part(back), 0.5, 0.1);
    EXPECT_EQ(read(memory, kContents), contents(1, kContents));
    SUCCEEDS(sh_free(device_, memory));
}

TEST_F(OccupancyHelpers, ANeighbourThatPausesForItselfIsLeftAlone) {
    add_neighbour("host:1", 1);
    open_helped("host:1");
    const uint64_t memory = filled(1, kContents);
    sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
    uint64_t other = 0;
    SUCCEEDS(sh_alloc(neighbours_[0].get(), kMiB, &options, &other));
    core::Helpers::set_quiet_ns(3'600'000'000'000);
    SUCCEEDS(sh_pause(neighbours_[0].get(), nullptr, nullptr));
    sh_occupancy_change gone = SH_OCCUPANCY_CHANGE_INIT, back = SH_OCCUPANCY_CHANGE_INIT;
    SUCCEEDS(pause({}, 0, SH_CONTENTS_DEFAULT, &gone));
    EXPECT_EQ(gone.helped_bytes, 0u);
    SUCCEEDS(resume({}, 0, &back));
    EXPECT_NEAR(helped_part(back), 0.5, 0.1) << "its link to the host was busy, and the other direction is free";
    EXPECT_EQ(read(memory, kContents), contents(1, kContents));
    SUCCEEDS(sh_free(device_, memory));
    SUCCEEDS(sh_free(neighbours_[0].get(), other));
}

TEST_F(OccupancyHelpers, AHelperWithoutMemoryToSpareIsLeftOut) {
    add_neighbour("host:1", 1, 32 * kMiB);
    open_helped("host:1");
    const uint64_t memory = filled(1, kContents);
    sh_occupancy_change gone = SH_OCCUPANCY_CHANGE_INIT;
    SUCCEEDS(pause({}, 0, SH_CONTENTS_DEFAULT, &gone));
    SUCCEEDS(resume());
    EXPECT_EQ(gone.copied_bytes, kContents);
    EXPECT_EQ(gone.helped_bytes, 0u);
    EXPECT_EQ(read(memory, kContents), contents(1, kContents));
    SUCCEEDS(sh_free(device_, memory));
}

// The memory of the helper is lent for a moment: who needs it for itself waits, and is not refused.
TEST_F(OccupancyHelpers, AHelperThatNeedsItsWholeBudgetWaits) {
    add_neighbour("host:1", 1);
    open_helped("host:1");
    const uint64_t memory = filled(1, kContents);
    SUCCEEDS(pause());
    int lent = 0;
    for (int round = 0; round < 5; round++) {
        std::atomic<bool> over = false;
        std::thread resuming([&] {
            EXPECT_SUCCEEDS(resume());
            EXPECT_SUCCEEDS(pause({}, SH_OCCUPANCY_COPY_ALL));
            over = true;
        });
        while (!over && !used(0)) std::this_thread::yield();
        lent += !over;
        uint64_t all = 0;
        EXPECT_SUCCEEDS(sh_alloc(neighbours_[0].get(), 128 * kMiB, nullptr, &all));
        EXPECT_SUCCEEDS(sh_free(neighbours_[0].get(), all));
        resuming.join();
    }
    EXPECT_GT(lent, 0);
    SUCCEEDS(resume());
    EXPECT_EQ(read(memory, kContents), contents(1, kContents));
    SUCCEEDS(sh_free(device_, memory));
}

TEST_F(OccupancyHelpers, MemoryThatIsNotPinnedNeedsNoHelper) {
    add_neighbour("host:1", 1);
    open_helped("host:1");
    const uint64_t memory = filled(1, kContents);
    const uint64_t before = peak_of_neighbour();
    SUCCEEDS(pause({}, SH_OCCUPANCY_UNPINNED));
    SUCCEEDS(resume());
    EXPECT_EQ(peak_of_neighbour(), before);
    EXPECT_EQ(read(memory, kContents), contents(1, kContents));
    SUCCEEDS(sh_free(device_, memory));
}

TEST_F(OccupancyHelpers, FilesKeepTheirContentsToo) {
    add_neighbour("host:1", 1);
    open_helped("host:1");
    const uint64_t staged = filled(1, 16 * kMiB), in_file = filled(2, 12 * kMiB, "file", SH_CONTENTS_FILE);
    sh_occupancy_change gone = SH_OCCUPANCY_CHANGE_INIT;
    SUCCEEDS(pause({}, 0, SH_CONTENTS_DEFAULT, &gone));
    SUCCEEDS(resume());
    EXPECT_GT(gone.helped_bytes, 0u);
    EXPECT_EQ(read(staged, 16 * kMiB), contents(1, 16 * kMiB));
    EXPECT_EQ(read(in_file, 12 * kMiB), contents(2, 12 * kMiB));
    SUCCEEDS(sh_free(device_, staged));
    SUCCEEDS(sh_free(device_, in_file));
}

}  // namespace
}  // namespace stagehand::test
