// Pressure: the engine's callback for the case that other runtimes need memory.
#pragma once

#include <cstdint>
#include <mutex>

#include <stagehand/residency.h>

namespace stagehand::core {

// The callback runs under the mutex of this class. No other mutex is taken under it.
class Pressure {
public:
    // `runtime` is the handle that the callback gets. Waits for a callback that is running, so the caller must not hold
    // the runtime's mutex.
    void set(sh_runtime* runtime, sh_pressure_fn callback, void* user_data);
    void tell(uint64_t bytes);

private:
    std::mutex mutex_;
    sh_pressure_fn callback_ = nullptr;
    void* user_data_ = nullptr;
    sh_runtime* runtime_ = nullptr;
};

}  // namespace stagehand::core
