// A thread of an engine that runs given work while the caller waits. Tests use it if the result depends on the thread
// that makes a call.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace stagehand::test {

class Worker {
public:
    // The thread runs `before` first.
    explicit Worker(std::function<void()> before = [] {}) : work_(std::move(before)), thread_([this] { loop(); }) {}
    ~Worker() {
        {
            const std::lock_guard lock(mutex_);
            ending_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

    void run(std::function<void()> work) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !work_; });
        work_ = std::move(work);
        changed_.notify_all();
        changed_.wait(lock, [&] { return !work_; });
    }

private:
    void loop() {
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [&] { return work_ || ending_; });
            if (!work_) return;
            work_();
            work_ = nullptr;
            changed_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::function<void()> work_;
    bool ending_ = false;
    std::thread thread_;
};

}  // namespace stagehand::test
