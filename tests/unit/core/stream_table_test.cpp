// StreamTable on a device whose streams fail one by one. The table reports each bad stream once, and still waits for
// the other streams.
#include "core/memory/stream_table.h"

#include <map>
#include <set>

#include <gtest/gtest.h>

namespace stagehand::core {
namespace {

// Streams and events by their numbers. The test decides when the work on a stream has finished.
struct Driver {
    sh_backend_event events = 0;
    std::map<sh_backend_event, sh_stream> recorded;  // the stream that an event stands for
    std::set<sh_stream> destroyed, refusing;
    bool refuses_events = false;
    std::vector<sh_stream> waited;  // by the host, in turn

    sh_status of(sh_stream stream) const {
        if (destroyed.count(stream)) return SH_ERROR_INVALID_HANDLE;
        return refusing.count(stream) ? SH_ERROR_BACKEND : SH_OK;
    }
};

Driver& driver_of(sh_backend_device* device) { return *reinterpret_cast<Driver*>(device); }

sh_backend make_table() {
    sh_backend table = {};
    table.name = "test";
    table.last_error = [] { return "the stream is no good"; };
    table.device_close = [](sh_backend_device*) {};
    table.event_create = [](sh_backend_device* device, uint32_t, sh_backend_event* out) -> sh_status {
        *out = ++driver_of(device).events;
        return SH_OK;
    };
    table.event_destroy = [](sh_backend_device*, sh_backend_event) -> sh_status { return SH_OK; };
    table.event_record = [](sh_backend_device* device, sh_backend_event event, sh_stream stream) {
        Driver& driver = driver_of(device);
        const sh_status status = driver.refuses_events ? sh_status(SH_ERROR_BACKEND) : driver.of(stream);
        if (status == SH_OK) driver.recorded[event] = stream;
        return status;
    };
    table.event_synchronize = [](sh_backend_device* device, sh_backend_event event) -> sh_status {
        Driver& driver = driver_of(device);
        driver.waited.push_back(driver.recorded.at(event));
        return SH_OK;
    };
    table.stream_synchronize = [](sh_backend_device* device, sh_stream stream) {
        Driver& driver = driver_of(device);
        if (const sh_status status = driver.of(stream); status != SH_OK) return status;
        driver.waited.push_back(stream);
        return sh_status(SH_OK);
    };
    return table;
}

class StreamTableTest : public testing::Test {
protected:
    static constexpr sh_stream kFirst = 11, kSecond = 12, kThird = 13;  // in the order of their numbers

    void SetUp() override {
        for (const sh_stream stream : {kFirst, kSecond, kThird}) ASSERT_TRUE(use(stream).ok());
        driver_.recorded.clear();
    }
    // Queues work that uses the runtime's memory.
    Status use(sh_stream stream) {
        uint32_t number = 0;
        SH_TRY(streams_.number(stream, &number));
        streams_.mark(number);
        return Status();
    }
    bool is_recorded(sh_stream stream) const {
        for (const auto& [event, of] : driver_.recorded)
            if (of == stream) return true;
        return false;
    }
    std::set<sh_stream> waited() const { return {driver_.waited.begin(), driver_.waited.end()}; }

    Driver driver_;
    const sh_backend table_ = make_table();
    BackendDevice device_{table_, reinterpret_cast<sh_backend_device*>(&driver_), {}};
    EventPool events_{device_};
    StreamTable streams_{device_, events_};
};

TEST_F(StreamTableTest, bad_streams_do_not_keep_the_others_from_being_recorded) {
    driver_.destroyed.insert(kFirst);
    driver_.refusing.insert(kSecond);
    EXPECT_EQ(streams_.record_all().code(), SH_ERROR_INVALID_HANDLE) << "the first failure";
    EXPECT_TRUE(is_recorded(kThird));
    EXPECT_EQ(streams_.record_all().code(), SH_ERROR_BACKEND) << "its work may still run: told again";
    driver_.refusing.clear();
    EXPECT_TRUE(streams_.record_all().ok());
    EXPECT_TRUE(is_recorded(kSecond));
}

// The engine may destroy its streams after the step has ended.
TEST_F(StreamTableTest, streams_that_were_recorded_may_go) {
    driver_.destroyed.insert(kFirst);
    EXPECT_EQ(streams_.record_all().code(), SH_ERROR_INVALID_HANDLE);
    driver_.destroyed.insert({kSecond, kThird});
    EXPECT_TRUE(streams_.record_all().ok()) << "a stream that is gone is told once";
    EXPECT_TRUE(streams_.synchronize_all().ok());
    EXPECT_EQ(waited(), (std::set<sh_stream>{kSecond, kThird}));
}

// The stream's work has ended after the wait, so the engine may destroy the stream like the others.
TEST_F(StreamTableTest, a_stream_whose_event_cannot_be_recorded_is_waited_for) {
    driver_.refuses_events = true;
    EXPECT_EQ(streams_.record_all().code(), SH_ERROR_BACKEND);
    EXPECT_EQ(waited(), (std::set<sh_stream>{kFirst, kSecond, kThird}));
    driver_.refuses_events = false;
    driver_.destroyed.insert({kFirst, kSecond, kThird});
    EXPECT_TRUE(streams_.record_all().ok());
    EXPECT_TRUE(streams_.synchronize_all().ok());
}

TEST_F(StreamTableTest, a_bad_stream_does_not_keep_the_others_from_being_waited_for) {
    driver_.destroyed.insert(kFirst);
    EXPECT_EQ(streams_.synchronize_all().code(), SH_ERROR_INVALID_HANDLE);
    EXPECT_EQ(waited(), (std::set<sh_stream>{kSecond, kThird}));
    EXPECT_TRUE(streams_.synchronize_all().ok());
}

// If all places are taken, a new stream takes the place of the one that was used longest ago.
TEST_F(StreamTableTest, a_refused_stream_stays_refused_in_the_place_of_another) {
    for (sh_stream stream = 100; stream < 200; stream++) ASSERT_TRUE(use(stream).ok());
    constexpr sh_stream kRefused = 500;
    driver_.refusing.insert(kRefused);
    for (int k = 0; k < 2; k++) EXPECT_EQ(use(kRefused).code(), SH_ERROR_BACKEND) << k;
    driver_.refusing.clear();
    EXPECT_TRUE(use(kRefused).ok());
}

// A caller that cannot wait for all streams waits for none, and tries again later.
TEST_F(StreamTableTest, events_of_a_set_with_a_bad_stream_are_recorded_but_not_handed_out) {
    driver_.destroyed.insert(kFirst);
    std::vector<sh_backend_event> waits = {99};
    EXPECT_EQ(streams_.append_events(~uint64_t(0), &waits).code(), SH_ERROR_INVALID_HANDLE);
    EXPECT_EQ(waits, std::vector<sh_backend_event>{99});
    driver_.destroyed.insert({kSecond, kThird});  // recorded before: their events stand
    EXPECT_TRUE(streams_.append_events(~uint64_t(0), &waits).ok());
    EXPECT_EQ(waits.size(), 3u);
}

TEST_F(StreamTableTest, a_stream_that_cannot_be_forgotten_is_tried_again) {
    driver_.refusing.insert(kSecond);
    EXPECT_EQ(streams_.forget(kSecond).code(), SH_ERROR_BACKEND);
    EXPECT_TRUE(streams_.forget(kFirst).ok());
    driver_.refusing.clear();
    EXPECT_TRUE(streams_.forget(kSecond).ok());
    EXPECT_EQ(driver_.waited, (std::vector<sh_stream>{kFirst, kSecond}));
}

// The number is used again. What its last stream had queued would be taken for work of the new one.
TEST_F(StreamTableTest, a_full_table_waits_for_the_least_recently_used_stream) {
    for (sh_stream stream = 100; stream < 100 + StreamTable::kStreams - 3; stream++) ASSERT_TRUE(use(stream).ok());
    ASSERT_TRUE(use(kFirst).ok());
    EXPECT_TRUE(driver_.waited.empty());
    ASSERT_TRUE(use(1000).ok());
    EXPECT_EQ(driver_.waited, (std::vector<sh_stream>{kSecond}));
    driver_.refusing.insert(kThird);
    EXPECT_EQ(use(1001).code(), SH_ERROR_BACKEND);
}

}  // namespace
}  // namespace stagehand::core
