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
    pthread_sigmask(SIG_SETMASK, &all, &before);  // a thread begins with its maker's mask
    Status status;
    try {
        *out_thread = std::thread([name, run = std::move(run)] {
            const Status status = no_throw([&] { return run(), Status(); });
            if (!status.ok()) log_line(SH_LOG_ERROR, "thread %s has ended: %s", name, status.text());
        });
        pthread_setname_np(out_thread->native_handle(), name);
    } catch (const std::system_error& error) {
        status = Status(SH_ERROR_OUT_OF_HOST_MEMORY, error.what()).within("no thread");
    } catch (const std::bad_alloc&) {
        status = Status(SH_ERROR_OUT_OF_HOST_MEMORY, "no memory for a thread");
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return status;
}

}  // namespace stagehand::platform
