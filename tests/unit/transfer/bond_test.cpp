// The bytes of a load on several links: what each is dealt, and that loads write one after the other.
#include "transfer/bond/bond.h"

#include <algorithm>
#include <cstring>
#include <latch>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "backend/stray_copies.h"
#include "host/host_backend.h"
#include "transfer/bond/deal.h"
#include "transfer/host/pinned_memory.h"

namespace stagehand::transfer::test {
namespace {

constexpr uint64_t kBondMiB = 1 << 20;

// What a link carries from the time when it is free until `end`.
double carried(const DealtLink& link, double now, double end) {
    return link.bytes_per_ns * std::max(0.0, end - std::max(link.free_at_ns, now));
}

// The earliest end is found by bisection.
TEST(Deal, LinksGetWhatTheyCarryUntilTheEarliestEnd) {
    constexpr double kNow = 500'000;
    constexpr uint64_t kGrain = 4096;
    std::mt19937_64 random(1);
    for (int round = 0; round < 2000; round++) {
        std::vector<DealtLink> links(1 + random() % 4);
        for (DealtLink& link : links) {
            link.bytes_per_ns = 1 + static_cast<double>(random() % 100);
            link.free_at_ns = static_cast<double>(random() % 1'000'000);
        }
        for (size_t i = 1; i < links.size(); i++)
            if (random() % 4 == 0) links[i].bytes_per_ns = 0;
        const std::vector<DealtLink> before = links;
        const uint64_t bytes = 1 + random() % (64 * kBondMiB);
        double end = 1e9;
        for (double least = 0; end - least > 1e-3;) {
            const double middle = (least + end) / 2;
            double all = 0;
            for (const DealtLink& link : before) all += carried(link, kNow, middle);
            (all < static_cast<double>(bytes) ? least : end) = middle;
        }
        deal(bytes, kGrain, kGrain, kNow, links);
        uint64_t sum = links[0].bytes;
        for (size_t i = 1; i < links.size(); i++) {
            sum += links[i].bytes;
            EXPECT_EQ(links[i].bytes % kGrain, 0u);
            const double fair = carried(before[i], kNow, end), got = static_cast<double>(links[i].bytes);
            EXPECT_LE(got, fair + 1) << "round " << round;
            EXPECT_GT(got, fair - static_cast<double>(kGrain) - 1) << "round " << round;
        }
        ASSERT_EQ(sum, bytes);
    }
}

TEST(Deal, ALinkGetsNothingRatherThanTooLittle) {
    DealtLink links[] = {{10, 0, 0}, {0.01, 0, 0}};
    deal(10 * kBondMiB, 4096, kBondMiB, 0, links);
    EXPECT_EQ(links[0].bytes, 10 * kBondMiB);
    EXPECT_EQ(links[1].bytes, 0u);
}

// A device and a helper in host memory.
class BondTest : public testing::Test {
protected:
    static constexpr uint64_t kBytes = 8 * kBondMiB;

    void SetUp() override {
        device_ = open(0);
        helper_ = open(1);
        lanes_ = std::make_unique<Lanes>(*device_);
        helper_lanes_ = std::make_unique<Lanes>(*helper_);
        ASSERT_TRUE(device_->range_reserve(kBytes, 4096, &to_).ok());
        ASSERT_TRUE(helper_->range_reserve(6 * kBondMiB, 4096, &buffer_).ok());
        for (PinnedMemory* source : {&ones_, &twos_})
            ASSERT_TRUE(PinnedMemory::allocate(*device_, kBytes, source).ok());
        std::memset(ones_.data(), 1, kBytes);
        std::memset(twos_.data(), 2, kBytes);
        ASSERT_TRUE(lanes_->lend(Direction::to_device, &lane_).ok());
        bond_ = std::make_unique<Bond>(*device_);
        ASSERT_TRUE(bond_->open(*lanes_).ok());
        auto relay = std::make_unique<Relay>(*device_, *helper_);
        ASSERT_TRUE(relay->open(*lanes_, *helper_lanes_, buffer_, 6 * kBondMiB).ok());
        relay->set_speed(1, 0);
        bond_->add(std::move(relay), "host:1");
        bond_->set_own_speed(1, 0);
    }
    void TearDown() override {
        EXPECT_TRUE(bond_->synchronize(lane_.stream()).ok());
        bond_.reset();
        lane_ = Lane();
        helper_lanes_.reset();
        lanes_.reset();
        ones_.reset();
        twos_.reset();
        EXPECT_TRUE(helper_->range_free(buffer_, 6 * kBondMiB).ok());
        EXPECT_TRUE(device_->range_free(to_, kBytes).ok());
    }

    static std::unique_ptr<BackendDevice> open(uint32_t index) {
        static const sh_backend table = [] {
            sh_backend host = *host::host_backend();
            host.event_query = query;
            host.event_record = record;
            host.stream_synchronize = synchronize;
            return host;
        }();
        sh_backend_device* device = nullptr;
        sh_backend_device_info info = {};
        info.struct_size = sizeof info;
        EXPECT_EQ(table.device_open(index, "capacity=64MiB;map_pages=0", &device, &info), SH_OK);
        if (index) helper_handle_ = device;
        return std::make_unique<BackendDevice>(table, device, info);
    }

    static sh_status query(sh_backend_device* device, sh_backend_event event, uint32_t* done) {
        return answers_ ? host::host_backend()->event_query(device, event, done) : SH_ERROR_BACKEND;
    }

    // The helper answers nothing while it is mute.
    static sh_status record(sh_backend_device* device, sh_backend_event event, sh_stream stream) {
        if (mute_ && device == helper_handle_) return SH_ERROR_BACKEND;
        return host::host_backend()->event_record(device, event, stream);
    }
    static sh_status synchronize(sh_backend_device* device, sh_stream stream) {
        if (mute_ && device == helper_handle_) return SH_ERROR_BACKEND;
        return host::host_backend()->stream_synchronize(device, stream);
    }

    // Loads all bytes, with the helper or without it, after all loads before.
    void load(const PinnedMemory& from, bool helped) {
        bond_->use(0, helped);
        ASSERT_TRUE(bond_->follow_all(lane_.stream()).ok());
        uint64_t bytes = 0;
        ASSERT_TRUE(issue(from, &bytes).ok());
        EXPECT_EQ(bytes, kBytes);
    }
    Status issue(const PinnedMemory& from, uint64_t* out_bytes) {
        const Command command{
            Command::Kind::to_device, false, to_, reinterpret_cast<uint64_t>(from.data()), kBytes, {}};
        WaitSet waited;
        waited.clear(0);
        BondedLoad bonded;
        Issued issued;
        Status status = bond_->issue(lane_.stream(), {&command, 1}, {}, &bonded, &waited, &issued);
        *out_bytes = issued.bytes;
        return status;
    }
    // The helper has been given a copy, stands still, and answers nothing.
    void lose_sight(const PinnedMemory& from) {
        block(bond_->relay(0).streams().of_helper, *helper_);
        mute_ = true;
        bond_->use(0, true);
        uint64_t bytes = 0;
        EXPECT_EQ(issue(from, &bytes).code(), SH_ERROR_BACKEND);
        EXPECT_FALSE(bond_->end_reads().ok());
    }
    // An event that comes after all loads, and whether it has come.
    sh_backend_event finish() {
        sh_backend_event done = 0;
        EXPECT_TRUE(device_->event_create(false, &done).ok());
        EXPECT_TRUE(bond_->finish(lane_.stream(), done).ok());
        return done;
    }
    bool has_come(sh_backend_event event) {
        uint32_t done = 0;
        EXPECT_TRUE(device_->event_query(event, &done).ok());
        return done;
    }
    // The lane and the helper's copies stand still until the latch opens.
    void block(sh_stream stream, BackendDevice& device) {
        ASSERT_TRUE(device
                        .stream_launch(
                            stream, [](void* latch) { static_cast<std::latch*>(latch)->wait(); }, &go_, -1)
                        .ok());
    }
    uint64_t count_of(uint8_t value) const {
        const auto* const bytes = reinterpret_cast<const uint8_t*>(to_);
        return static_cast<uint64_t>(std::count(bytes, bytes + kBytes, value));
    }
    // Long enough for copies that wait for nothing.
    static void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }

    static inline std::atomic<bool> answers_ = true, mute_ = false;
    static inline std::atomic<sh_backend_device*> helper_handle_ = nullptr;
    std::latch go_{1};
    std::unique_ptr<BackendDevice> device_, helper_;
    std::unique_ptr<Lanes> lanes_, helper_lanes_;
    uint64_t to_ = 0, buffer_ = 0;
    PinnedMemory ones_, twos_;
    Lane lane_;
    std::unique_ptr<Bond> bond_;
};

TEST_F(BondTest, ALoadOverTwoLinksBringsEveryByte) {
    load(ones_, true);
    ASSERT_TRUE(bond_->synchronize(lane_.stream()).ok());
    EXPECT_EQ(count_of(1), kBytes);
    EXPECT_EQ(bond_->bytes(0), kBytes / 2);
}

TEST_F(BondTest, OneWayBringsAWholePiece) {
    WaitSet waited;
    BondedLoad bonded;
    Issued issued;
    waited.clear(0);
    bond_->use(0, true);
    sh_stream streams[2] = {};
    for (int half = 0; half < 2; half++) {
        const Command command{Command::Kind::to_device,
                              false,
                              to_ + half * kBytes / 2,
                              reinterpret_cast<uint64_t>(ones_.data()),
                              kBytes / 2,
                              {}};
        ASSERT_TRUE(
            bond_->issue_whole(lane_.stream(), {&command, 1}, {}, &bonded, &waited, &issued, &streams[half]).ok());
    }
    EXPECT_EQ(streams[0], lane_.stream());
    EXPECT_EQ(streams[1], bond_->relay(0).stream());
    ASSERT_TRUE(bond_->synchronize(lane_.stream()).ok());
    EXPECT_EQ(count_of(1), kBytes);
    EXPECT_EQ(bond_->bytes(0), kBytes / 2);
    EXPECT_EQ(issued.bytes, kBytes);
}

TEST_F(BondTest, WhatTheHelperBringsIsWrittenAfterTheLoadBefore) {
    block(lane_.stream(), *device_);
    load(ones_, false);
    load(twos_, true);
    pause();
    go_.count_down();
    ASSERT_TRUE(bond_->synchronize(lane_.stream()).ok());
    EXPECT_EQ(count_of(2), kBytes);
}

TEST_F(BondTest, TheEventOfALoadComesAfterWhatTheHelperBrings) {
    block(bond_->relay(0).streams().of_helper, *helper_);
    load(ones_, true);
    const sh_backend_event done = finish();
    pause();
    EXPECT_FALSE(has_come(done));
    go_.count_down();
    ASSERT_TRUE(device_->event_synchronize(done).ok());
    EXPECT_EQ(count_of(1), kBytes);
    EXPECT_TRUE(device_->event_destroy(done).ok());
}

TEST_F(BondTest, TheEventOfALoadComesAfterWhatTheOwnLinkBrings) {
    block(lane_.stream(), *device_);
    load(ones_, true);
    const sh_backend_event done = finish();
    pause();
    EXPECT_FALSE(has_come(done));
    go_.count_down();
    ASSERT_TRUE(device_->event_synchronize(done).ok());
    EXPECT_EQ(count_of(1), kBytes);
    EXPECT_TRUE(device_->event_destroy(done).ok());
}

TEST_F(BondTest, WorkOnTheLaneComesAfterAJoin) {
    block(bond_->relay(0).streams().of_helper, *helper_);
    load(ones_, true);
    ASSERT_TRUE(bond_->join(lane_.stream()).ok());
    sh_backend_event done = 0;
    ASSERT_TRUE(device_->event_create(false, &done).ok());
    ASSERT_TRUE(device_->event_record(done, lane_.stream()).ok());
    pause();
    EXPECT_FALSE(has_come(done));
    go_.count_down();
    ASSERT_TRUE(device_->event_synchronize(done).ok());
    EXPECT_EQ(count_of(1), kBytes);
    EXPECT_TRUE(device_->event_destroy(done).ok());
}

TEST_F(BondTest, TheNextLoadThatFollowsAllIsWrittenAfterWhatTheHelperBrings) {
    block(bond_->relay(0).streams().of_helper, *helper_);
    load(ones_, true);
    load(twos_, false);
    pause();
    go_.count_down();
    ASSERT_TRUE(bond_->synchronize(lane_.stream()).ok());
    EXPECT_EQ(count_of(2), kBytes);
}

// The bytes are in doubt only if the helper had not been asked since it copied them.
TEST_F(BondTest, AHelperThatFailsIsLeftOut) {
    for (const bool asked : {true, false}) {
        SCOPED_TRACE(asked);
        TearDown();
        SetUp();
        load(ones_, true);
        ASSERT_TRUE(bond_->synchronize(lane_.stream()).ok());
        if (asked) {
            EXPECT_TRUE(bond_->check().ok());
        }
        answers_ = false;
        EXPECT_EQ(bond_->check().ok(), asked);
        answers_ = true;
        EXPECT_TRUE(bond_->has_failed(0));
        EXPECT_EQ(bond_->distrusted(), asked ? 0u : 1u);
        load(twos_, true);
        ASSERT_TRUE(bond_->synchronize(lane_.stream()).ok());
        EXPECT_EQ(count_of(2), kBytes);
        EXPECT_EQ(bond_->bytes(0), kBytes / 2) << "the own link has brought the second load";
    }
}

// Memory stays until it is known that the helper reads it no more.
TEST_F(BondTest, MemoryStaysWhileAFailedHelperMayReadIt) {
    StrayCopies& strays = StrayCopies::of_process();
    const uint64_t mark = strays.mark();
    lose_sight(ones_);
    EXPECT_TRUE(strays.may_use(mark));
    EXPECT_FALSE(strays.may_use(strays.mark())) << "memory that is taken now";
    mute_ = false;
    go_.count_down();
    ASSERT_TRUE(bond_->settle().ok());
    ASSERT_TRUE(bond_->relay(0).wait_for(bond_->relay(0).streams()).ok());
    EXPECT_TRUE(strays.may_use(mark)) << "others may have queued copies while that was waited for";
    EXPECT_TRUE(bond_->end_reads().ok());
    EXPECT_FALSE(strays.may_use(mark));
}

TEST_F(BondTest, MemoryStaysForEverIfNobodyKnowsWhetherAFailedHelperReadsIt) {
    const sh_stream link = bond_->relay(0).streams().of_helper;
    lose_sight(ones_);
    bool over = true;
    EXPECT_TRUE(bond_->close_way(0, &over).ok());
    EXPECT_FALSE(over);
    const auto* const read = static_cast<const uint8_t*>(ones_.data());
    ones_.reset();
    EXPECT_FALSE(ones_.data());
    mute_ = false;
    go_.count_down();
    ASSERT_TRUE(helper_->stream_synchronize(link).ok());  // it reads the memory only now
    EXPECT_EQ(read[kBytes - 1], 1);
    EXPECT_TRUE(bond_->end_reads().ok()) << "nobody can be asked any more";
}

}  // namespace
}  // namespace stagehand::transfer::test
