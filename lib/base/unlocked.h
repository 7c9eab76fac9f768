// Unlocked: gives a mutex up for its own lifetime. The mutex is held again afterwards, also after an exception.
#pragma once

#include <mutex>

namespace stagehand {

class Unlocked {
public:
    explicit Unlocked(std::unique_lock<std::mutex>& lock) : lock_(lock) { lock_.unlock(); }
    ~Unlocked() { lock_.lock(); }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

private:
    std::unique_lock<std::mutex>& lock_;
};

// Runs the work while the mutex is given up.
template <class Work>
auto unlocked(std::unique_lock<std::mutex>& lock, Work&& work) {
    const Unlocked without(lock);
    return work();
}

}  // namespace stagehand
