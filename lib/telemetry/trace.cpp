#include "telemetry/trace.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/log.h"
#include "telemetry/json_text.h"

namespace stagehand::telemetry {

std::atomic<bool> tracing{false};

namespace {

// A runtime is a process of the trace, what it does are its threads: Perfetto then draws one track for each.
enum Track { kSteps = 1, kWaits = 2, kLoads = 3, kViews = 4, kWriteBacks = 5, kPlans = 6, kKept = 7, kReserved = 8, kGuest = 9 };
constexpr const char* kTrackNames[] = {"", "steps", "waits", "loads", "views", "write-backs", "plans", "kept resident", "reserved", "guest"};

struct Figure {
    const char* name;
    uint64_t value;
};

class Recorder {
public:
    Status start(const char* path) {
        std::lock_guard lock(mutex_);
        if (file_) return Status(SH_ERROR_INVALID_STATE, "a trace is being recorded already");
        std::string name = path;   // what may throw comes before anything has begun
        std::FILE* const file = std::fopen(path, "we");
        if (!file) return Status(SH_ERROR_IO, "trace " + name + ": " + std::strerror(errno));
        file_ = file;
        path_ = std::move(name);
        runtimes_.clear();
        failed_ = std::fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", file_) < 0;
        first_ = true;
        tracing.store(true, std::memory_order_relaxed);
        return Status();
    }

    Status stop() {
        std::lock_guard lock(mutex_);
        if (!file_) return Status(SH_ERROR_INVALID_STATE, "no trace is being recorded");
        tracing.store(false, std::memory_order_relaxed);
        failed_ |= std::fputs("\n]}\n", file_) < 0;
        failed_ |= std::fclose(file_) != 0;
        file_ = nullptr;
        return failed_ ? Status(SH_ERROR_IO, "trace " + path_ + ": could not be written whole") : Status();
    }

    // Records what `event` adds, if anything is recorded. What finds no memory is left out, and the trace is not whole.
    template <class Event>
    void record(Event&& event) noexcept {
        std::lock_guard lock(mutex_);
        if (!file_) return;
        try {
            event(*this);
        } catch (...) {
            failed_ = true;
        }
    }

    void add(const char* runtime, Track track, const std::string& name, uint64_t begin_ns, uint64_t end_ns, std::initializer_list<Figure> figures = {}) {
        const int process = number(runtime);
        JsonText event;
        event.begin_object().add("name", name).add("ph", "X").add("pid", process).add("tid", static_cast<int>(track));
        event.add("ts", static_cast<double>(begin_ns) / 1e3).add("dur", static_cast<double>(end_ns - begin_ns) / 1e3).begin_object("args");
        for (const Figure& figure : figures) event.add(figure.name, figure.value);
        write(event.end_object().end_object());
    }

    void count(const char* runtime, const char* counter, uint64_t now_ns, uint64_t value) {
        const int process = number(runtime);
        JsonText event;
        event.begin_object().add("name", counter).add("ph", "C").add("pid", process).add("ts", static_cast<double>(now_ns) / 1e3);
        write(event.begin_object("args").add("value", value).end_object().end_object());
    }

    // The child of a fork would write what is buffered a second time, and the file's end into the parent's file: so nothing is
    // buffered when it begins, and it lets the file go.
    void before_fork() {
        mutex_.lock();
        if (file_) failed_ |= std::fflush(file_) != 0;
    }
    void after_fork(bool child) {
        if (child && file_) {
            tracing.store(false, std::memory_order_relaxed);
            std::fclose(file_);
            file_ = nullptr;
        }
        mutex_.unlock();
    }

private:
    int number(const char* runtime) {
        const auto known = runtimes_.find(runtime);
        if (known != runtimes_.end()) return known->second;
        const int process = static_cast<int>(runtimes_.size()) + 1;
        name("process_name", process, 0, runtime);
        for (int track = kSteps; track <= kGuest; track++) name("thread_name", process, track, kTrackNames[track]);
        runtimes_.emplace(runtime, process);
        return process;
    }

    void name(const char* what, int process, int track, const char* name) {
        JsonText event;
        event.begin_object().add("name", what).add("ph", "M").add("pid", process);
        if (track) event.add("tid", track);
        write(event.begin_object("args").add("name", name).end_object().end_object());
    }

    void write(const JsonText& event) {
        failed_ |= std::fputs(first_ ? "\n" : ",\n", file_) < 0;
        first_ = false;
        failed_ |= std::fputs(event.text().c_str(), file_) < 0;
    }

    std::mutex mutex_;
    std::FILE* file_ = nullptr;
    std::string path_;
    std::map<std::string, int, std::less<>> runtimes_;
    bool first_ = true;
    bool failed_ = false;
};

// Never destroyed: threads may still record while the process exits.
Recorder& recorder() {
    static Recorder* const instance = [] {
        Recorder* const made = new Recorder;
        pthread_atfork([] { recorder().before_fork(); }, [] { recorder().after_fork(false); }, [] { recorder().after_fork(true); });
        return made;
    }();
    return *instance;
}

template <class Event>
void record(Event&& event) noexcept {
    if (trace_on()) recorder().record(event);
}

}  // namespace

Status trace_start(const char* path) { return recorder().start(path); }
Status trace_stop() { return recorder().stop(); }

void trace_start_from_environment() {
    static std::once_flag once;
    std::call_once(once, [] {
        const char* path = secure_getenv("STAGEHAND_TRACE");
        if (!path || !*path) return;
        if (Status status = trace_start(path); !status.ok()) log_line(SH_LOG_WARNING, "STAGEHAND_TRACE: %s", status.text());
        else std::atexit([] { (void)trace_stop().ok(); });
    });
}

void trace_step(const char* runtime, uint64_t step, uint64_t begin_ns, uint64_t end_ns) noexcept {
    record([&](Recorder& trace) { trace.add(runtime, kSteps, "step " + std::to_string(step), begin_ns, end_ns); });
}

void trace_wait(const char* runtime, const char* block, uint64_t begin_ns, uint64_t end_ns) noexcept {
    record([&](Recorder& trace) { trace.add(runtime, kWaits, block, begin_ns, end_ns); });
}

void trace_load(const char* runtime, const char* block, uint64_t begin_ns, uint64_t end_ns, uint64_t bytes, uint64_t pieces) noexcept {
    record([&](Recorder& trace) { trace.add(runtime, kLoads, block, begin_ns, end_ns, {{"bytes", bytes}, {"pieces", pieces}}); });
}

void trace_write_back(const char* runtime, const char* block, uint64_t begin_ns, uint64_t bytes) noexcept {
    record([&](Recorder& trace) { trace.add(runtime, kWriteBacks, block, begin_ns, begin_ns, {{"bytes", bytes}}); });
}

void trace_view(const char* runtime, const char* block, uint64_t begin_ns, uint64_t end_ns) noexcept {
    record([&](Recorder& trace) { trace.add(runtime, kViews, block, begin_ns, end_ns); });
}

void trace_plan(const char* runtime, uint64_t begin_ns, uint64_t end_ns) noexcept {
    record([&](Recorder& trace) { trace.add(runtime, kPlans, "plan", begin_ns, end_ns); });
}

void trace_residency(const char* runtime, Residency how, uint64_t begin_ns, uint64_t end_ns, uint64_t bytes) noexcept {
    const Track track = how == Residency::kept ? kKept : how == Residency::reserved ? kReserved : kGuest;
    record([&](Recorder& trace) { trace.add(runtime, track, kTrackNames[track], begin_ns, end_ns, {{"bytes", bytes}}); });
}

void trace_memory(const char* runtime, uint64_t now_ns, uint64_t held_bytes) noexcept {
    record([&](Recorder& trace) { trace.count(runtime, "held bytes", now_ns, held_bytes); });
}

}  // namespace stagehand::telemetry
