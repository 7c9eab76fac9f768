// Starts the threads of the library: they have names, and take no signals of the program.
#pragma once

#include <functional>
#include <thread>

#include "base/status.h"

namespace stagehand::platform {

// Starts a thread that takes no signals, so that the program's handlers run on the program's threads. `name` has at
// most 15 characters and outlives the thread. Returns SH_ERROR_OUT_OF_HOST_MEMORY if the system can start no thread. An
// exception ends the thread, and the log reports it. `run` catches its own exceptions if someone waits for its result.
Status start_thread(const char* name, std::function<void()> run, std::thread* out_thread) noexcept;

}  // namespace stagehand::platform
