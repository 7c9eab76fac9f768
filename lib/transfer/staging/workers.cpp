#include "transfer/staging/workers.h"

#include <utility>

#include <sys/prctl.h>
#include <unistd.h>

#include "base/log.h"
#include "platform/thread.h"

namespace stagehand::transfer {

Status Workers::start(uint32_t count, std::function<Status()> begin, std::function<void()> work, uint32_t* out_able) {
    process_ = getpid();
    begin_ = std::move(begin);
    work_ = std::move(work);
    able_ = unable_ = 0;
    failure_ = Status();
    threads_.reserve(count);
    uint32_t made = 0;
    Status status;
    for (; made < count; made++) {
        std::thread thread;
        status = platform::start_thread(
            "sh-staging", [this] { run(); }, &thread);
        if (!status.ok()) break;
        threads_.push_back(std::move(thread));
    }
    std::unique_lock lock(mutex_);
    told_.wait(lock, [&] { return able_ + unable_ == made; });
    *out_able = able_;
    if (able_ == count) return Status();
    if (status.ok()) status = failure_;
    if (able_ == 0) return status;
    log_line(SH_LOG_WARNING, "only %u of %u staging threads could be started: %s", able_, count, status.text());
    return Status();
}

void Workers::run() {
    prctl(PR_SET_TIMERSLACK, 5000);  // nanoseconds; the pauses between looks are tens of microseconds
    Status begun = begin_();
    const bool able = begun.ok();
    {
        std::lock_guard lock(mutex_);
        (able ? able_ : unable_)++;
        if (!able) failure_ = std::move(begun);
        told_.notify_one();
    }
    if (able) work_();
}

void Workers::join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
}

bool Workers::in_child() const { return process_ != 0 && process_ != getpid(); }

}  // namespace stagehand::transfer
