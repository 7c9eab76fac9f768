// Stream: a thread that carries out commands in order, and keeps the model time at which they would end on
// the device.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include <stagehand/base.h>

#include "host/command.h"
#include "host/pacing.h"

namespace stagehand::host {

// With a bandwidth, an operation starts at the latest of: the end of the one before, the moment of its call,
// and the events waited for; it ends when latency and bytes say so; the thread sleeps until that moment. A
// thread that wakes late thus delays nothing that follows in the model, and delays do not add up. Without a
// bandwidth, operations take the time that they take.
class Stream {
public:
    // `number` tells the streams of a device apart in their random delays.
    Stream(Pacing& pacing, uint64_t number);
    // Carries out what is queued, then ends the thread.
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    sh_status start();
    // SH_ERROR_INVALID_HANDLE once stop() was called.
    sh_status enqueue(Command&& command);
    // Returns when all that was queued before the call has been carried out.
    void synchronize();
    // Carries out what is queued, and ends the thread. By one thread, which is not the stream's.
    void stop();
    bool is_current_thread() const { return thread_.get_id() == std::this_thread::get_id(); }

private:
    void run();
    void carry_out(Command& command);
    void copy(const Command& command);
    void launch(const Command& command);
    void end_operation(uint64_t start_ns, uint64_t least_ns, uint64_t began_ns);
    void delay_at_random();

    Pacing& pacing_;
    std::mutex mutex_;
    std::condition_variable work_;      // commands were queued, or it stops
    std::condition_variable progress_;  // a command was carried out and somebody waits for that
    CommandQueue queue_;
    uint64_t queued_ = 0;
    uint64_t finished_ = 0;
    uint32_t waiters_ = 0;
    bool idle_ = false;
    bool stopping_ = false;
    std::thread thread_;

    // Of the thread alone.
    uint64_t model_ns_ = 0;
    uint64_t random_;
};

}  // namespace stagehand::host
