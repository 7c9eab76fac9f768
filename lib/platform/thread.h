// Threads of the library: named, and deaf to the program's signals.
#pragma once

#include <functional>
#include <thread>

#include "base/status.h"

namespace stagehand::platform {

// Starts a thread that takes no signals, so that the program's handlers run on the program's threads. `name`
// has at most 15 characters, and outlives the thread. SH_ERROR_OUT_OF_HOST_MEMORY when the system has no thread to give. An exception ends
// the thread, and is told in the log: who must not be kept waiting catches its own.
Status start_thread(const char* name, std::function<void()> run, std::thread* out_thread) noexcept;

}  // namespace stagehand::platform
