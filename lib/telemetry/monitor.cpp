#include "telemetry/monitor.h"

#include <pthread.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "base/log.h"
#include "telemetry/monitor_server.h"
#include "telemetry/monitor_socket.h"

namespace stagehand::telemetry {
namespace {

class Monitor {
public:
    Status start(const char* path, std::function<std::string()> answer) {
        std::lock_guard lock(mutex_);
        if (server_)
            return Status(SH_ERROR_INVALID_STATE,
                          "the monitor is already running at " + socket_->path() + ", until its scope ends");
        std::string chosen = path ? path : "";
        if (!path) SH_TRY(default_monitor_path(&chosen));
        std::unique_ptr<MonitorSocket> socket;
        SH_TRY(MonitorSocket::open(chosen, &socket));
        SH_TRY(MonitorServer::start(socket->descriptor(), std::move(answer), {}, &server_));
        socket_ = std::move(socket);
        log_line(SH_LOG_INFO, "the monitor is listening at %s", socket_->path().c_str());
        return Status();
    }

    Status stop() {
        std::lock_guard lock(mutex_);
        if (!server_) return Status(SH_ERROR_INVALID_STATE, "the monitor is not running");
        server_.reset();
        socket_.reset();
        return Status();
    }

    // The child of a fork has no monitor thread. An inherited socket would look alive after the end of the parent, so
    // the child closes it. The file belongs to the parent.
    void before_fork() { mutex_.lock(); }
    void after_fork(bool child) {
        if (child && server_) {
            socket_->abandon();
            abandoned_ = std::move(server_);  // never destroyed, because its thread cannot be joined
            socket_.reset();
        }
        mutex_.unlock();
    }

private:
    std::mutex mutex_;
    std::unique_ptr<MonitorSocket> socket_;
    std::unique_ptr<MonitorServer> server_;  // declared after its socket, so that it is destroyed first
    std::unique_ptr<MonitorServer> abandoned_;
};

// The monitor is never destroyed. It is stopped when the process exits, and may be called after that.
Monitor& monitor() {
    static Monitor* const instance = [] {
        Monitor* const made = new Monitor;
        pthread_atfork([] { monitor().before_fork(); }, [] { monitor().after_fork(false); },
                       [] { monitor().after_fork(true); });
        std::atexit([] { (void)monitor().stop().ok(); });
        return made;
    }();
    return *instance;
}

}  // namespace

Status monitor_start(const char* path, std::function<std::string()> answer) {
    return monitor().start(path, std::move(answer));
}
Status monitor_stop() { return monitor().stop(); }

void monitor_start_from_environment(std::function<std::string()> answer) {
    static std::once_flag once;
    std::call_once(once, [&] {
        const char* path = secure_getenv("STAGEHAND_MONITOR");
        if (!path || !*path) return;
        if (!std::strcmp(path, "1")) path = nullptr;
        if (Status status = monitor_start(path, std::move(answer)); !status.ok())
            log_line(SH_LOG_WARNING, "STAGEHAND_MONITOR: %s", status.text());
    });
}

}  // namespace stagehand::telemetry
