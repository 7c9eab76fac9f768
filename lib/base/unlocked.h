// Unlocked: a mutex given up for as long as this lives, and held again whatever ends it, an exception too.
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

// Does the work with the mutex given up.
template <class Work>
auto unlocked(std::unique_lock<std::mutex>& lock, Work&& work) {
    const Unlocked without(lock);
    return work();
}

}  // namespace stagehand
