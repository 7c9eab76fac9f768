#include "core/runtime/pressure.h"

namespace stagehand::core {

void Pressure::set(sh_runtime* runtime, sh_pressure_fn callback, void* user_data) {
    const std::lock_guard lock(mutex_);
    callback_ = callback;
    user_data_ = user_data;
    runtime_ = runtime;
}

void Pressure::tell(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (callback_) callback_(runtime_, bytes, user_data_);
}

}  // namespace stagehand::core
