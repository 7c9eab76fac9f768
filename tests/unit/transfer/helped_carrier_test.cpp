// The bytes of a load on several links: what each is dealt, and that loads write one after the other.
#include "transfer/carrier/helped_carrier.h"

#include <algorithm>
#include <cstring>
#include <latch>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "backend/stray_copies.h"
#include "host/host_backend.h"
#include "transfer/carrier/deal.h"
#include "transfer/host/pinned_memory.h"

namespace stagehand::transfer::test {
namespace {

constexpr uint64_t kCarriedMiB = 1 << 20;

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
        const uint64_t bytes = 1 + random() % (64 * kCarriedMiB);
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
    deal(10 * kCarriedMiB, 4096, kCarriedMiB, 0, links);
    EXPECT_EQ(links[0].bytes, 10 * kCarriedMiB);
    EXPECT_EQ(links[1].bytes, 0u);
}

// A device and a helper in host memory.
class HelpedCarrierTest : public testing::Test {
protected:
    static constexpr uint64_t kBytes = 8 * kCarriedMiB;

    void SetUp() override {
        device_ = open(0);
        helper_ = open(1);
        lanes_ = std::make_unique<Lanes>(*device_);
        helper_lanes_ = std::make_unique<Lanes>(*helper_);
        ASSERT_TRUE(device_->range_reserve(kBytes, 4096, &to_).ok());
        ASSERT_TRUE(helper_->range_reserve(6 * kCarriedMiB, 4096, &buffer_).ok());
        for (PinnedMemory* source : {&ones_, &twos_})
            ASSERT_TRUE(PinnedMemory::allocate(*device_, kBytes, source).ok());
        std::memset(ones_.data(), 1, kBytes);
        std::memset(twos_.data(), 2, kBytes);
        carrier_ = std::make_unique<HelpedCarrier>(*device_, std::make_unique<StraightCarrier>(*device_));
        ASSERT_TRUE(carrier_->open(*lanes_).ok());
        size_t way = 0;
        ASSERT_TRUE(
            carrier_
                ->add(
                    *lanes_, std::make_unique<Relay>(*device_, *helper_), "host:1", [this] { return is_idle_; }, &way)
                .ok());
        ASSERT_TRUE(carrier_->open_relay(way, *lanes_, *helper_lanes_, buffer_, 6 * kCarriedMiB).ok());
        carrier_->set_speed(way, 1, 0);
        carrier_->set_own_speed(1, 0);
    }
    void TearDown() override {
        EXPECT_TRUE(carrier_->synchronize().ok());
        carrier_.reset();
        helper_lanes_.reset();
        lanes_.reset();
        ones_.reset();
        twos_.reset();
        EXPECT_TRUE(helper_->range_free(buffer_, 6 * kCarriedMiB).ok());
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
        if (device == helper_handle_ && (mute_ || fails_once_.exchange(false))) return SH_ERROR_BACKEND;
        return host::host_backend()->stream_synchronize(device, stream);
    }

    // Loads all bytes, with the helper or without it, after all loads before.
    void load(const PinnedMemory& from, bool helped) {
        is_idle_ = helped;
        Trip trip = 0;
        ASSERT_TRUE(carrier_->begin(true, 0, &trip).ok());
        uint64_t bytes = 0;
        ASSERT_TRUE(carry(from, trip, &bytes).ok());
        EXPECT_EQ(bytes, kBytes);
        last_ = carrier_->end(trip);
    }
    Status carry(const PinnedMemory& from, Trip trip, uint64_t* out_bytes) {
        const Command command{
            Command::Kind::to_device, false, to_, reinterpret_cast<uint64_t>(from.data()), kBytes, {}};
        WaitSet waited;
        waited.clear(0);
        Issued issued;
        sh_stream stream = carrier_->stream();
        Status status = carrier_->carry(trip, &stream, {{&command, 1}, {}, &waited, &issued});
        *out_bytes = issued.bytes;
        return status;
    }
    // The helper has been given a copy, stands still, and answers nothing.
    void lose_sight(const PinnedMemory& from) {
        block(carrier_->relay(0).streams().of_helper, *helper_);
        mute_ = true;
        Trip trip = 0;
        EXPECT_TRUE(carrier_->begin(false, 0, &trip).ok());
        uint64_t bytes = 0;
        EXPECT_EQ(carry(from, trip, &bytes).code(), SH_ERROR_BACKEND);
    }
    // The helper fails, which is found out.
    void fail_helper() {
        answers_ = false;
        carrier_->look();
        answers_ = true;
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

    static inline std::atomic<bool> answers_ = true, mute_ = false, fails_once_ = false;
    static inline std::atomic<sh_backend_device*> helper_handle_ = nullptr;
    std::latch go_{1};
    std::unique_ptr<BackendDevice> device_, helper_;
    std::unique_ptr<Lanes> lanes_, helper_lanes_;
    uint64_t to_ = 0, buffer_ = 0;
    PinnedMemory ones_, twos_;
    bool is_idle_ = true;
    Trip last_ = 0;  // the last load
    std::unique_ptr<HelpedCarrier> carrier_;
};

TEST_F(HelpedCarrierTest, ALoadOverTwoLinksBringsEveryByte) {
    load(ones_, true);
    ASSERT_TRUE(carrier_->synchronize().ok());
    EXPECT_EQ(count_of(1), kBytes);
    EXPECT_EQ(carrier_->bytes_beside(), kBytes / 2);
}

// What it has brought is right if the helper was asked since it copied that.
TEST_F(HelpedCarrierTest, AHelperThatFailsIsLeftOut) {
    for (const bool asked : {true, false}) {
        SCOPED_TRACE(asked);
        TearDown();
        SetUp();
        load(twos_, false);
        EXPECT_EQ(last_, 0u) << "the own link has brought it";
        load(ones_, true);
        const Trip helped = last_;
        ASSERT_TRUE(carrier_->settle().ok());
        ASSERT_TRUE(device_->stream_synchronize(carrier_->stream()).ok());
        if (asked) carrier_->look();
        EXPECT_EQ(carrier_->ask(helped), Answer::unknown) << "it is not known to have ended";
        fail_helper();
        EXPECT_TRUE(carrier_->state(0).failed);
        EXPECT_EQ(carrier_->times_wrong(), asked ? 0u : 1u);
        EXPECT_EQ(carrier_->ask(helped) == Answer::wrong, !asked);
        load(twos_, true);
        EXPECT_EQ(last_, 0u);
        ASSERT_TRUE(carrier_->synchronize().ok());
        EXPECT_EQ(count_of(2), kBytes);
        EXPECT_EQ(carrier_->bytes_beside(), kBytes / 2) << "the own link has brought the last load";
    }
}

TEST_F(HelpedCarrierTest, TripsThatAreKnownStayRight) {
    load(ones_, true);
    const Trip first = last_;
    ASSERT_TRUE(carrier_->synchronize().ok());
    carrier_->look();
    EXPECT_EQ(carrier_->ask(first), Answer::right);
    load(twos_, true);
    fail_helper();
    EXPECT_EQ(carrier_->ask(first), Answer::right);
    EXPECT_EQ(carrier_->ask(last_), Answer::wrong);
    ASSERT_TRUE(carrier_->synchronize().ok());
}

// The trip under way when a failure is noted is wrong itself.
TEST_F(HelpedCarrierTest, ATripDuringWhichAHelperFailsIsWrong) {
    load(ones_, true);
    Trip trip = 0;
    ASSERT_TRUE(carrier_->begin(false, 0, &trip).ok());
    fail_helper();
    EXPECT_EQ(carrier_->end(trip), trip);
    EXPECT_EQ(carrier_->ask(trip), Answer::wrong);
    EXPECT_EQ(carrier_->ask(last_), Answer::wrong);
}

// The error of a copy is told once.
TEST_F(HelpedCarrierTest, MemoryIsFreeWhenAHelperAnswersTheSecondTime) {
    StrayCopies& strays = StrayCopies::of_process();
    const uint64_t mark = strays.mark();
    load(ones_, true);
    fails_once_ = true;
    EXPECT_TRUE(carrier_->settle().ok());
    EXPECT_FALSE(fails_once_);
    EXPECT_FALSE(strays.may_use(mark));
    EXPECT_TRUE(carrier_->relay(0).is_distrusted());
}

// The device copies from the helper after the helper's own copies.
TEST_F(HelpedCarrierTest, AHelperHasBroughtItsPartWhenItIsSettled) {
    block(carrier_->relay(0).streams().of_device, *device_);
    load(ones_, true);
    std::thread opens([this] {
        pause();
        go_.count_down();
    });
    EXPECT_TRUE(carrier_->settle().ok());
    EXPECT_TRUE(device_->stream_synchronize(carrier_->stream()).ok());  // its own part
    EXPECT_EQ(count_of(1), kBytes);
    opens.join();
}

TEST_F(HelpedCarrierTest, MemoryStaysIfNobodyKnowsWhetherAFailedHelperReadsIt) {
    StrayCopies& strays = StrayCopies::of_process();
    const uint64_t mark = strays.mark();
    const sh_stream link = carrier_->relay(0).streams().of_helper;
    lose_sight(ones_);
    EXPECT_TRUE(strays.may_use(mark));
    EXPECT_FALSE(strays.may_use(strays.mark())) << "memory that is taken now";
    bool over = true;
    EXPECT_TRUE(carrier_->close_relay(0, &over).ok());
    EXPECT_FALSE(over);
    const auto* const read = static_cast<const uint8_t*>(ones_.data());
    ones_.reset();
    EXPECT_FALSE(ones_.data());
    mute_ = false;
    go_.count_down();
    ASSERT_TRUE(helper_->stream_synchronize(link).ok());  // it reads the memory only now
    EXPECT_EQ(read[kBytes - 1], 1);
}

}  // namespace
}  // namespace stagehand::transfer::test
