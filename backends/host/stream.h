// Stream: a thread that runs commands in order. It keeps the model time at which the commands would end on the device.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include <stagehand/base.h>

#include "host/command.h"
#include "host/pacing.h"

namespace stagehand::host {

// With a bandwidth, an operation starts at the latest of three times: the end of the operation before, the time of its
// call, and the events that it waits for. Latency and bytes give its end, and the thread sleeps until then. So a thread
// that wakes late delays no later operation in the model, and delays do not add up. Without a bandwidth, operations
// take their real time.
class Stream {
public:
    // `number` gives each stream of a device its own random delays.
    Stream(Pacing& pacing, uint64_t number);
    // Runs the queued commands, then ends the thread.
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    sh_status start();
    // Returns SH_ERROR_INVALID_HANDLE after stop() was called.
    sh_status enqueue(Command&& command);
    // Returns when all commands that were queued before the call have run.
    void synchronize();
    // Runs the queued commands and ends the thread. One thread may call it, but not the stream's own thread.
    void stop();
    bool is_current_thread() const { return thread_.get_id() == std::this_thread::get_id(); }

private:
    void run();
    void carry_out(Command& command);
    void copy(const Command& command);
    void launch(const Command& command);
    void unpack(const sh_backend_packed& packed, uint64_t issued_ns);
    void pack_tiles(const sh_backend_tiles& tiles, uint64_t issued_ns);
    void unpack_tiles(const sh_backend_tiles& tiles, uint64_t issued_ns);
    void end_copy(Link& link, uint64_t bytes, uint64_t start_ns, uint64_t began_ns);
    void end_operation(uint64_t start_ns, uint64_t least_ns, uint64_t began_ns);
    void delay_at_random();

    Pacing& pacing_;
    std::mutex mutex_;
    std::condition_variable work_;      // commands were queued, or the stream stops
    std::condition_variable progress_;  // a command has run while a thread waits in synchronize()
    CommandQueue queue_;
    uint64_t queued_ = 0;
    uint64_t finished_ = 0;
    uint32_t waiters_ = 0;
    bool idle_ = false;
    bool stopping_ = false;
    std::thread thread_;

    // Used by the stream's thread only.
    uint64_t model_ns_ = 0;
    uint64_t random_;
};

}  // namespace stagehand::host
