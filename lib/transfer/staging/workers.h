// Workers: the threads of the staging engine.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "base/status.h"

namespace stagehand::transfer {

class Workers {
public:
    // Starts `count` threads. Each thread calls `begin`, and calls `work` if `begin` succeeds. Returns when each thread
    // has reported whether it can work: `out_able` is the number of threads that can. Fails if no thread can work. Logs
    // a warning if only some threads can work.
    Status start(uint32_t count, std::function<Status()> begin, std::function<void()> work, uint32_t* out_able);
    // `work` must be about to return.
    void join();
    // Returns true in a forked child of the process that started the threads. The child has no threads.
    bool in_child() const;

private:
    void run();

    std::function<Status()> begin_;
    std::function<void()> work_;
    std::vector<std::thread> threads_;
    pid_t process_ = 0;
    std::mutex mutex_;
    std::condition_variable told_;
    uint32_t able_ = 0, unable_ = 0;
    Status failure_;
};

}  // namespace stagehand::transfer
