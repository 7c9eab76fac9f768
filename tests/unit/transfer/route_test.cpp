// Routes: the route of a source, its commands, and how they are issued.
#include "transfer/route/route.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "fake_backend.h"
#include "transfer/carrier/issue.h"
#include "transfer/host/pinned_memory.h"
#include "transfer/route/straight_route.h"

namespace stagehand::transfer {
namespace {

using Kind = Command::Kind;

class RouteTest : public testing::Test {
protected:
    void SetUp() override { ASSERT_TRUE(device_->stream_create(&stream_).ok()); }

    Command to_device(size_t to, size_t from, uint64_t bytes, Waits waits = {}, bool joins = false) {
        return {Kind::to_device, joins, address(to), reinterpret_cast<uint64_t>(host_.data() + from), bytes, waits};
    }
    uint64_t address(size_t offset) { return reinterpret_cast<uint64_t>(memory_.data() + offset); }
    Status issue_all(const std::vector<Command>& commands, const std::vector<sh_backend_event>& events = {}) {
        waited_.clear(events.size());
        issued_ = {};
        return issue(*device_, stream_, commands, events, &waited_, &issued_);
    }
    std::vector<sh_backend_event> make_events(size_t count) {
        std::vector<sh_backend_event> events(count);
        for (sh_backend_event& event : events) {
            EXPECT_TRUE(device_->event_create(false, &event).ok());
            EXPECT_TRUE(device_->event_record(event, stream_).ok());
        }
        return events;
    }
    void finish() { ASSERT_TRUE(device_->stream_synchronize(stream_).ok()); }

    test::FakeBackend fake_;
    std::unique_ptr<BackendDevice> device_ = fake_.open();
    sh_stream stream_ = 0;
    std::vector<char> host_ = std::vector<char>(4096, 'h'), memory_ = std::vector<char>(4096, 'd');
    WaitSet waited_;
    Issued issued_;
};

TEST_F(RouteTest, StopsAtTheFirstFailureAndTellsWhatWasIssued) {
    fake_.fail_call(2, false, "copy_to_device");
    EXPECT_EQ(issue_all({to_device(0, 0, 8), to_device(100, 0, 8), to_device(200, 0, 8)}).code(), SH_ERROR_BACKEND);
    EXPECT_EQ(issued_.commands, 1u);
    finish();
    EXPECT_EQ(memory_[200], 'd');
    const auto events = make_events(1);
    fake_.fail_call(1, false, "stream_wait_event");
    EXPECT_EQ(issue_all({to_device(300, 0, 8, {0, 1})}, events).code(), SH_ERROR_BACKEND);
    EXPECT_FALSE(waited_.has(0));
    EXPECT_EQ(issued_.commands, 0u);
}

TEST_F(RouteTest, OfPinnedMemoryIsStraightAndOfOtherMemoryStaged) {
    PinnedMemory pinned;
    ASSERT_TRUE(PinnedMemory::allocate(*device_, 4096, &pinned).ok());
    for (const bool is_pinned : {true, false}) {
        sh_segment from = SH_SEGMENT_INIT;
        from.kind = SH_SOURCE_POINTER;
        from.pointer = is_pinned ? pinned.data() : static_cast<void*>(host_.data());
        from.bytes = 4096;
        Segment segment;
        segment.bytes = from.bytes;
        Status not_pinned;
        ASSERT_TRUE(open_segment(*device_, from, {}, &segment, &not_pinned).ok());
        EXPECT_EQ(segment.straight(), is_pinned);
        EXPECT_EQ(segment.pinned_piece, 0u);
        close_segment(*device_, &segment);
    }
}

TEST_F(RouteTest, OfNeighboursIsJoinedWhereTheyAreNeighboursOnBothSides) {
    ASSERT_TRUE(device_->host_register(host_.data(), host_.size()).ok());
    const auto segment = [&](size_t from, uint64_t offset, uint64_t bytes) {
        Segment made;
        made.source.kind = SH_SOURCE_POINTER;
        made.source.pointer = host_.data() + from;
        made.source.bytes = bytes;
        made.offset = offset;
        made.bytes = bytes;
        made.route = Route::straight;
        return made;
    };
    // After the first: a neighbour, a gap on the device, a gap on the host, and a neighbour again.
    std::vector<Segment> segments = {segment(0, 0, 100), segment(100, 100, 50), segment(150, 200, 50),
                                     segment(300, 250, 10), segment(310, 260, 10)};
    ASSERT_TRUE(join_segments(*device_, segments).ok());
    std::vector<bool> joined;
    for (const Segment& each : segments) joined.push_back(each.joined);
    EXPECT_EQ(joined, (std::vector<bool>{false, true, false, false, true}));
}

TEST_F(RouteTest, OfMemoryThatCannotBePinnedIsStagedAndSaysWhy) {
    fake_.may_register = [](uint64_t) { return false; };
    sh_segment from = SH_SEGMENT_INIT;
    from.kind = SH_SOURCE_POINTER;
    from.pointer = host_.data();
    from.bytes = host_.size();
    Segment segment;
    segment.bytes = from.bytes;
    Status not_pinned;
    ASSERT_TRUE(open_segment(*device_, from, {.pin = true}, &segment, &not_pinned).ok());
    EXPECT_FALSE(not_pinned.ok());
    EXPECT_FALSE(segment.straight());
    close_segment(*device_, &segment);
}

TEST_F(RouteTest, OfDeviceMemoryNeedsABackendThatReachesIt) {
    sh_segment from = SH_SEGMENT_INIT;
    from.kind = SH_SOURCE_DEVICE;
    from.pointer = memory_.data();
    from.bytes = memory_.size();
    Segment segment;
    Status not_pinned;
    EXPECT_EQ(open_segment(*device_, from, {}, &segment, &not_pinned).code(), SH_ERROR_UNSUPPORTED);
}

Segment straight(void* memory, uint64_t bytes, uint64_t piece = 0, bool joined = false) {
    Segment segment;
    segment.source.kind = SH_SOURCE_POINTER;
    segment.source.pointer = memory;
    segment.bytes = bytes;
    segment.route = Route::straight;
    segment.pinned_piece = piece;
    segment.joined = joined;
    return segment;
}

TEST(StraightRouteTest, CutsAtThePiecesInWhichMemoryWasPinned) {
    const Segment segment = straight(reinterpret_cast<void*>(0x10000), 10000, 4096);
    StraightRoute route;
    route.add(segment, 4000, 0x500000, 5000, {2, 1});
    ASSERT_EQ(route.commands().size(), 3u);
    const uint64_t bytes[] = {96, 4096, 808};
    uint64_t done = 0;
    for (size_t i = 0; i < 3; i++) {
        const Command& command = route.commands()[i];
        EXPECT_EQ(command.bytes, bytes[i]);
        EXPECT_EQ(command.device, 0x500000 + done);
        EXPECT_EQ(command.other, 0x10000 + 4000 + done);
        EXPECT_EQ(command.waits.first, 2u);
        done += bytes[i];
    }
}

TEST(StraightRouteTest, BringsNeighboursOfOnePieceOfMemoryByOneCopyUnlessTheyWaitForOtherThings) {
    const Segment first = straight(reinterpret_cast<void*>(0x10000), 100),
                  second = straight(reinterpret_cast<void*>(0x10064), 50, 0, true);
    StraightRoute route;
    route.add(first, 0, 0x500000, 100, {0, 1});
    route.add(second, 0, 0x500064, 50, {0, 1});
    ASSERT_EQ(route.commands().size(), 1u);
    EXPECT_EQ(route.commands()[0].bytes, 150u);
    route.clear();
    route.add(first, 0, 0x500000, 100, {0, 1});
    route.add(second, 0, 0x500064, 50, {1, 1});
    EXPECT_EQ(route.commands().size(), 2u);
    route.clear();
    route.add(first, 0, 0x500000, 100, {0, 0});  // waits for nothing, and so begins where the next one's waits do
    route.add(second, 0, 0x500064, 50, {0, 2});
    ASSERT_EQ(route.commands().size(), 2u);
    EXPECT_EQ(route.commands()[1].waits.count, 2u);
    route.clear();
    route.add(first, 0, 0x500000, 100, {0, 1});
    route.add(second, 10, 0x500064, 40, {0, 1});  // not its beginning
    EXPECT_EQ(route.commands().size(), 2u);
}

TEST(StraightRouteTest, LeavesManySmallCopiesToTheWorkersInTheOrderOfTheDevice) {
    const Segment small = straight(reinterpret_cast<void*>(0x10000), 100),
                  large = straight(reinterpret_cast<void*>(0x900000), 1 << 20);
    StraightRoute route;
    std::vector<StagedExtent> staged;
    const auto add = [&](size_t count) {
        route.clear();
        staged.clear();
        route.add(large, 0, 0x700000, 1 << 20, {});
        for (size_t k = count; k-- > 0;) route.add(small, 1, 0x500000 + 1000 * k, 99, {});
        route.leave_small(&staged);
    };
    add(16);
    EXPECT_EQ(route.commands().size(), 17u);
    EXPECT_TRUE(staged.empty());
    add(17);
    ASSERT_EQ(route.commands().size(), 1u);
    EXPECT_EQ(route.commands()[0].bytes, 1u << 20);
    ASSERT_EQ(staged.size(), 17u);
    for (size_t k = 0; k < staged.size(); k++) {
        EXPECT_EQ(staged[k].device_address, 0x500000 + 1000 * k);
        EXPECT_EQ(staged[k].source_offset, 1u);
        EXPECT_EQ(staged[k].source, &small.source);
    }
}

}  // namespace
}  // namespace stagehand::transfer
