// Events: the work that an event stands for at the moment of a call.
#include "instantiate.h"

namespace conformance {
namespace {

class EventTest : public Conformance {};

TEST_P(EventTest, NeverRecordedIsDone) {
    const sh_backend_event event = new_event();
    EXPECT_TRUE(is_done(event));
    SH_EXPECT_OK(backend().event_synchronize(device(), event));
}

TEST_P(EventTest, WaitingForOneThatWasNeverRecordedIsNoWait) {
    const sh_stream stream = new_stream(), held = new_stream();
    const sh_backend_event never = new_event(), after = new_event();
    SH_OK_OR_END(backend().stream_wait_event(device(), stream, never));
    SH_HOLD(hold, held);
    SH_OK_OR_END(backend().event_record(device(), never, held));  // too late to be meant
    SH_OK_OR_END(backend().event_record(device(), after, stream));
    SH_OK_OR_END(backend().event_synchronize(device(), after));
    EXPECT_FALSE(is_done(never));
}

TEST_P(EventTest, IsDoneWhenWhatCameBeforeIs) {
    const sh_stream stream = new_stream();
    const sh_backend_event before = new_event(), behind = new_event();
    SH_OK_OR_END(backend().event_record(device(), before, stream));
    SH_OK_OR_END(backend().event_synchronize(device(), before));
    SH_HOLD(hold, stream);
    SH_OK_OR_END(backend().event_record(device(), behind, stream));
    EXPECT_TRUE(is_done(before));
    EXPECT_FALSE(is_done(behind));
    hold.release();
    SH_OK_OR_END(backend().event_synchronize(device(), behind));
    EXPECT_TRUE(is_done(behind));
}

TEST_P(EventTest, AWaitOrdersStreams) {
    const Memory memory = new_memory(4 * page());
    const sh_stream writer = new_stream(), reader = new_stream();
    const sh_backend_event written = new_event(), read = new_event();
    SH_PINNED(data, pattern(memory.bytes, 1));
    SH_PINNED(there, std::vector<uint8_t>(memory.bytes));
    SH_HOLD(hold, writer);
    SH_OK_OR_END(backend().copy_to_device(device(), writer, memory.address, data.data(), memory.bytes));
    SH_OK_OR_END(backend().event_record(device(), written, writer));
    SH_OK_OR_END(backend().stream_wait_event(device(), reader, written));
    SH_OK_OR_END(backend().copy_to_host(device(), reader, there.data(), memory.address, memory.bytes));
    SH_OK_OR_END(backend().event_record(device(), read, reader));
    EXPECT_FALSE(is_done(read));
    hold.release();
    SH_OK_OR_END(backend().event_synchronize(device(), read));
    EXPECT_TRUE(is_done(written));
    if (has_contents()) {
        EXPECT_EQ(there.bytes(), data.bytes());
    }
}

TEST_P(EventTest, AWaitIsForTheEventAsItIsAtTheCall) {
    const sh_stream first = new_stream(), second = new_stream(), waiting = new_stream();
    const sh_backend_event event = new_event(), waited = new_event();
    SH_OK_OR_END(backend().event_record(device(), event, first));
    SH_OK_OR_END(backend().stream_wait_event(device(), waiting, event));
    SH_HOLD(hold, second);
    SH_OK_OR_END(backend().event_record(device(), event, second));  // a later record does not count for the wait
    SH_OK_OR_END(backend().event_record(device(), waited, waiting));
    SH_OK_OR_END(backend().event_synchronize(device(), waited));
    EXPECT_FALSE(is_done(event));
}

TEST_P(EventTest, RecordedAnewItStandsForTheLast) {
    const sh_stream first = new_stream(), second = new_stream(), waiting = new_stream();
    const sh_backend_event event = new_event(), waited = new_event();
    SH_OK_OR_END(backend().event_record(device(), event, first));
    SH_OK_OR_END(backend().event_synchronize(device(), event));
    EXPECT_TRUE(is_done(event));
    SH_HOLD(hold, second);
    SH_OK_OR_END(backend().event_record(device(), event, second));
    EXPECT_FALSE(is_done(event));
    SH_OK_OR_END(backend().stream_wait_event(device(), waiting, event));
    SH_OK_OR_END(backend().event_record(device(), waited, waiting));
    EXPECT_FALSE(is_done(waited));
    hold.release();
    SH_OK_OR_END(backend().event_synchronize(device(), waited));
    EXPECT_TRUE(is_done(event));
}

TEST_P(EventTest, DestroyingOneLeavesQueuedWaitsValid) {
    const Memory memory = new_memory(page());
    const sh_stream writer = new_stream(), reader = new_stream();
    SH_PINNED(data, pattern(page(), 2));
    SH_PINNED(there, std::vector<uint8_t>(page()));
    sh_backend_event written = 0;
    SH_OK_OR_END(backend().event_create(device(), 0, &written));
    SH_HOLD(hold, writer);
    SH_OK_OR_END(backend().copy_to_device(device(), writer, memory.address, data.data(), page()));
    SH_OK_OR_END(backend().event_record(device(), written, writer));
    SH_OK_OR_END(backend().stream_wait_event(device(), reader, written));
    SH_OK_OR_END(backend().event_destroy(device(), written));
    SH_OK_OR_END(backend().copy_to_host(device(), reader, there.data(), memory.address, page()));
    const sh_backend_event read = new_event();  // may take the place of the one that is gone
    SH_OK_OR_END(backend().event_record(device(), read, reader));
    EXPECT_FALSE(is_done(read));
    hold.release();
    SH_OK_OR_END(backend().event_synchronize(device(), read));
    if (has_contents()) {
        EXPECT_EQ(there.bytes(), data.bytes());
    }
}

// Bytes go around three streams without the host. An event that is recorded again and again orders each hand-over.
TEST_P(EventTest, FencesAcrossStreamsHoldForManyRounds) {
    const int rounds = 100;
    const Memory memory = new_memory(2 * page());
    const uint64_t a = memory.address, b = memory.address + page();
    const sh_stream up = new_stream(), across = new_stream(), down = new_stream();
    const sh_backend_event uploaded = new_event(), crossed = new_event(), downloaded = new_event();
    std::vector<std::vector<uint8_t>> from, to;
    for (int i = 0; i < rounds; ++i) {
        from.push_back(pattern(page(), i));
        to.emplace_back(page());
    }
    for (int i = 0; i < rounds; ++i) {
        SH_OK_OR_END(backend().stream_wait_event(device(), up, crossed));
        SH_OK_OR_END(backend().copy_to_device(device(), up, a, from[i].data(), page()));
        SH_OK_OR_END(backend().event_record(device(), uploaded, up));
        SH_OK_OR_END(backend().stream_wait_event(device(), across, uploaded));
        SH_OK_OR_END(backend().stream_wait_event(device(), across, downloaded));
        SH_OK_OR_END(backend().copy_on_device(device(), across, b, a, page()));
        SH_OK_OR_END(backend().event_record(device(), crossed, across));
        SH_OK_OR_END(backend().stream_wait_event(device(), down, crossed));
        SH_OK_OR_END(backend().copy_to_host(device(), down, to[i].data(), b, page()));
        SH_OK_OR_END(backend().event_record(device(), downloaded, down));
    }
    SH_OK_OR_END(backend().stream_synchronize(device(), down));
    if (!has_contents()) GTEST_SKIP() << "this device has no contents";
    for (int i = 0; i < rounds; ++i) EXPECT_EQ(to[i], from[i]) << "round " << i;
}

TEST_P(EventTest, ElapsedTimeHasASign) {
    const sh_stream stream = new_stream();
    const sh_backend_event begin = new_event(true), end = new_event(true);
    SH_OK_OR_END(backend().event_record(device(), begin, stream));
    const sh_status launched = backend().stream_launch(device(), stream, nullptr, nullptr, quirks().time_unit_ns);
    if (launched == SH_ERROR_UNSUPPORTED) GTEST_SKIP() << "this backend runs no host functions in streams";
    SH_OK_OR_END(launched);
    SH_OK_OR_END(backend().event_record(device(), end, stream));
    SH_OK_OR_END(backend().event_synchronize(device(), end));
    int64_t forwards = 0, backwards = 0, none = 1;
    SH_OK_OR_END(backend().event_elapsed(device(), begin, end, &forwards));
    SH_OK_OR_END(backend().event_elapsed(device(), end, begin, &backwards));
    SH_OK_OR_END(backend().event_elapsed(device(), end, end, &none));
    EXPECT_GE(forwards, quirks().time_unit_ns);
    EXPECT_LT(backwards, 0);
    EXPECT_NEAR(static_cast<double>(forwards), static_cast<double>(-backwards), 1000);
    EXPECT_EQ(none, 0);
}

TEST_P(EventTest, ElapsedTimeNeedsFinishedTimingEvents) {
    const sh_stream stream = new_stream();
    const sh_backend_event timed = new_event(true), never = new_event(true), untimed = new_event(false),
                           behind = new_event(true);
    SH_OK_OR_END(backend().event_record(device(), timed, stream));
    SH_OK_OR_END(backend().event_record(device(), untimed, stream));
    SH_OK_OR_END(backend().stream_synchronize(device(), stream));
    int64_t elapsed = 0;
    SH_EXPECT_FAILURE(backend().event_elapsed(device(), timed, never, &elapsed));
    SH_EXPECT_FAILURE(backend().event_elapsed(device(), untimed, timed, &elapsed));
    SH_HOLD(hold, stream);
    SH_OK_OR_END(backend().event_record(device(), behind, stream));
    SH_EXPECT_FAILURE(backend().event_elapsed(device(), timed, behind, &elapsed));
}

TEST_P(EventTest, ManyEventsComeAndGo) {
    const sh_stream stream = new_stream();
    std::vector<sh_backend_event> events(1000);
    for (sh_backend_event& event : events) {
        SH_OK_OR_END(backend().event_create(device(), 0, &event));
        SH_OK_OR_END(backend().event_record(device(), event, stream));
    }
    SH_OK_OR_END(backend().event_synchronize(device(), events.back()));
    for (const sh_backend_event event : events) {
        EXPECT_TRUE(is_done(event));
        SH_OK_OR_END(backend().event_destroy(device(), event));
    }
}

TEST_P(EventTest, EventsThatAreNoneAreErrors) {
    if (!quirks().checks_handles) GTEST_SKIP() << "drivers do not check this";
    const sh_stream stream = new_stream();
    sh_backend_event stale = 0;
    SH_OK_OR_END(backend().event_create(device(), 0, &stale));
    SH_OK_OR_END(backend().event_destroy(device(), stale));
    for (const sh_backend_event bad : {stale, sh_backend_event(0), sh_backend_event(stream)}) {
        uint32_t done = 0;
        EXPECT_EQ(backend().event_record(device(), bad, stream), SH_ERROR_INVALID_HANDLE);
        EXPECT_EQ(backend().event_query(device(), bad, &done), SH_ERROR_INVALID_HANDLE);
        EXPECT_EQ(backend().event_synchronize(device(), bad), SH_ERROR_INVALID_HANDLE);
        EXPECT_EQ(backend().event_destroy(device(), bad), SH_ERROR_INVALID_HANDLE);
        EXPECT_EQ(backend().stream_wait_event(device(), stream, bad), SH_ERROR_INVALID_HANDLE);
    }
}

SH_ON_EVERY_BACKEND(EventTest);

}  // namespace
}  // namespace conformance
