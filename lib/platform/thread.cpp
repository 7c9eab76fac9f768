#include "platform/thread.h"

#include <csignal>
#include <new>
#include <system_error>

#include <pthread.h>

#include "base/log.h"
#include "base/no_throw.h"

namespace stagehand::platform {

Status start_thread(const char* name, std::function<void()> run, std::thread* out_thread) noexcept {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // a thread inherits the signal mask of its creator
    Status status;
    try {
        *out_thread = std::thread([name, run = std::move(run)] {
            const Status status = no_throw([&] { return run(), Status(); });
            if (!status.ok()) log_line(SH_LOG_ERROR, "thread %s was ended by an exception: %s", name, status.text());
        });
        pthread_setname_np(out_thread->native_handle(), name);
    } catch (const std::system_error& error) {
        status = Status(SH_ERROR_OUT_OF_HOST_MEMORY, error.what()).within("cannot start a thread");
    } catch (const std::bad_alloc&) {
        status = Status(SH_ERROR_OUT_OF_HOST_MEMORY, "cannot start a thread: no host memory is left");
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return status;
}

}  // namespace stagehand::platform
