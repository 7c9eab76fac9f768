// Calls of several threads on one block: one of them brings it, and the others wait for that call.
#include <algorithm>
#include <atomic>
#include <deque>
#include <fstream>
#include <string>
#include <thread>

#include <unistd.h>

#include "engine.h"

namespace stagehand::test {
namespace {

// A thread that makes a call which has to wait.
class Caller {
public:
    template <class Call>
    explicit Caller(Call call)
        : thread_([this, call] {
              number_ = gettid();
              status_ = call();
              has_ended_ = true;
          }) {}
    ~Caller() {
        if (thread_.joinable()) thread_.join();
    }
    // Returns when the thread sleeps, or has not had to. The test's own mutexes are free by then.
    void wait_until_it_waits() const {
        while (!has_ended_ && (!number_ || state() != 'S')) std::this_thread::yield();
    }
    sh_status join() {
        thread_.join();
        return status_;
    }

private:
    char state() const {
        std::ifstream file("/proc/self/task/" + std::to_string(number_) + "/stat");
        std::string line;
        std::getline(file, line);
        const size_t name_end = line.rfind(')');
        return name_end == std::string::npos || name_end + 2 >= line.size() ? '?' : line[name_end + 2];
    }

    std::atomic<pid_t> number_{0};
    std::atomic<bool> has_ended_ = false;
    sh_status status_ = SH_ERROR_INTERNAL;
    std::thread thread_;
};

// A worker fills the buffer when it may.
int32_t fill_late(void* buffer, uint64_t, uint64_t bytes, void* may_go_on) {
    static_cast<std::atomic<bool>*>(may_go_on)->wait(false);
    std::fill_n(static_cast<uint8_t*>(buffer), bytes, uint8_t(1));
    return 0;
}

// The call that brings the block waits for a worker, which fills the memory that the block needs. Nothing happens after
// that except that the call ends.
TEST(WaitingCalls, go_on_when_another_call_has_brought_their_block) {
    constexpr size_t kRounds = 4, kCalls = 7;
    DeviceSettings settings;
    settings.budget_bytes = 9 * kPage;
    SoloModel model(settings, equal_blocks(1, 6 * kPage));
    std::atomic<bool> may_go_on = false;
    sh_segment segment = fill_segment(fill_late, &may_go_on, 6 * kPage);
    const sh_block late = register_block(model.runtime(), segment);
    sh_use uses[2] = {SH_USE_INIT, SH_USE_INIT};
    uses[0].block = model.id(0);
    uses[1].block = late;
    SUCCEEDS(sh_set_schedule(model.runtime(), uses, 2));
    model.plan();
    ASSERT_GT(model.state(0).streamed_bytes, 0u);
    for (size_t round = 0; round < kRounds; round++) {
        auto none = sh_sized<sh_view>();
        EXPECT_EQ(sh_acquire(model.runtime(), late, SH_STREAM_HOST, SH_ACQUIRE_NO_WAIT, &none), SH_NOT_READY);
        std::deque<Caller> callers;
        for (size_t i = 0; i < kCalls; i++) {
            callers.emplace_back([&] {
                auto view = sh_sized<sh_view>();
                return sh_acquire(model.runtime(), model.id(0), SH_STREAM_HOST, 0, &view);
            });
            callers.back().wait_until_it_waits();
        }
        may_go_on = true;
        may_go_on.notify_all();
        for (Caller& caller : callers) EXPECT_EQ(caller.join(), SH_OK);
        may_go_on = false;
        for (size_t i = 0; i < kCalls; i++) model.release(0);
    }
    may_go_on = true;
    may_go_on.notify_all();
}

}  // namespace
}  // namespace stagehand::test
