#include "telemetry/trace.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "platform/output_file.h"
#include "telemetry/json_text.h"

namespace stagehand::telemetry {

std::atomic<bool> tracing{false};

namespace {

// A runtime is a process of the trace, and each kind of event is a thread of that process, because Perfetto draws one
// track for each thread. Slices of one thread must not overlap: Perfetto's importer drops a slice that begins inside
// another slice of its thread and ends after it. Loads and views do overlap. A slice that overlaps the slices of its
// track therefore goes to a further lane of the track, which is a thread of its own ("loads 2").
enum Track {
    kSteps = 1,
    kWaits = 2,
    kLoads = 3,
    kViews = 4,
    kWriteBacks = 5,
    kPlans = 6,
    kKept = 7,
    kReserved = 8,
    kGuest = 9,
    kOccupancy = 10
};
constexpr const char* kTrackNames[] = {"",
                                       "steps",
                                       "waits",
                                       "loads",
                                       "views",
                                       "write-backs",
                                       "plans",
                                       "kept resident",
                                       "reserved",
                                       "guest",
                                       "pauses and resumes"};
// The thread of a lane is lane * kLaneStride + track, so that the first lane keeps the number of its track.
constexpr int kLaneStride = 16;
static_assert(kOccupancy < kLaneStride);

struct Figure {
    const char* name;
    uint64_t value;
};

class Recorder {
public:
    Status start(const char* path) {
        std::lock_guard lock(mutex_);
        if (file_.is_open())
            return Status(SH_ERROR_INVALID_STATE, "a trace is being recorded already, until its scope ends");
        std::string name = path;  // what may throw comes before anything has begun
        if (const int error = file_.open(path))
            return Status(SH_ERROR_IO, "trace " + name + ": " + std::strerror(error));
        path_ = std::move(name);
        runtimes_.clear();
        failed_ = file_.add("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[") != 0;
        first_ = true;
        tracing.store(true, std::memory_order_relaxed);
        return Status();
    }

    Status stop() {
        std::lock_guard lock(mutex_);
        if (!file_.is_open()) return Status(SH_ERROR_INVALID_STATE, "no trace is being recorded");
        tracing.store(false, std::memory_order_relaxed);
        failed_ |= file_.add("\n]}\n") != 0;
        failed_ |= file_.close() != 0;
        return failed_ ? Status(SH_ERROR_IO, "trace " + path_ + ": could not be written completely") : Status();
    }

    // Records what `event` adds, if anything is recorded. What finds no memory is left out, and the trace is not whole.
    template <class Event>
    void record(Event&& event) noexcept {
        std::lock_guard lock(mutex_);
        if (!file_.is_open()) return;
        try {
            event(*this);
        } catch (...) {
            failed_ = true;
        }
    }

    void add(const char* runtime, Track track, const std::string& name, uint64_t begin_ns, uint64_t end_ns,
             std::initializer_list<Figure> figures = {}) {
        Process& process = process_of(runtime);
        const int thread = lane_of(process, track, begin_ns, end_ns) * kLaneStride + track;
        JsonText event;
        event.begin_object().add("name", name).add("ph", "X").add("pid", process.number).add("tid", thread);
        event.add("ts", static_cast<double>(begin_ns) / 1e3)
            .add("dur", static_cast<double>(end_ns - begin_ns) / 1e3)
            .begin_object("args");
        for (const Figure& figure : figures) event.add(figure.name, figure.value);
        write(event.end_object().end_object());
    }

    void count(const char* runtime, const char* counter, uint64_t now_ns, uint64_t value) {
        const int process = process_of(runtime).number;
        JsonText event;
        event.begin_object()
            .add("name", counter)
            .add("ph", "C")
            .add("pid", process)
            .add("ts", static_cast<double>(now_ns) / 1e3);
        write(event.begin_object("args").add("value", value).end_object().end_object());
    }

    void add_nothing() { failed_ = true; }

    // The child of a fork would write what is buffered a second time, and the file's end into the parent's file: so
    // nothing is buffered when it begins, and it lets the file go.
    void before_fork() {
        mutex_.lock();
        if (file_.is_open()) failed_ |= file_.flush() != 0;
    }
    void after_fork(bool child) {
        if (child && file_.is_open()) {
            tracing.store(false, std::memory_order_relaxed);
            file_.abandon();
        }
        mutex_.unlock();
    }

private:
    struct Process {
        int number = 0;
        std::array<std::vector<uint64_t>, kLaneStride> lane_ends;  // by track: when the last slice of each lane ended
    };

    Process& process_of(const char* runtime) {
        const auto known = runtimes_.find(runtime);
        if (known != runtimes_.end()) return known->second;
        const int process = static_cast<int>(runtimes_.size()) + 1;
        describe("process_name", process, 0, "name", runtime);
        for (int track = kSteps; track <= kOccupancy; track++) name_lane(process, track, 0);
        Process& made = runtimes_[runtime];
        made.number = process;
        return made;
    }

    // The lane of a track that ended last before the slice begins; a new lane if all lanes are in use then. Slices come
    // when they end, but not strictly in that order, so a lane takes no slice that begins before its last one ended.
    int lane_of(Process& process, int track, uint64_t begin_ns, uint64_t end_ns) {
        std::vector<uint64_t>& ends = process.lane_ends[static_cast<size_t>(track)];
        size_t best = ends.size();
        for (size_t lane = 0; lane < ends.size(); lane++) {
            if (ends[lane] <= begin_ns && (best == ends.size() || ends[lane] > ends[best])) best = lane;
        }
        if (best == ends.size()) {
            ends.push_back(0);
            if (best > 0) name_lane(process.number, track, static_cast<int>(best));
        }
        ends[best] = std::max(begin_ns, end_ns);
        return static_cast<int>(best);
    }

    void name_lane(int process, int track, int lane) {
        const int thread = lane * kLaneStride + track;
        const std::string name = kTrackNames[track];
        describe("thread_name", process, thread, "name", lane == 0 ? name : name + " " + std::to_string(lane + 1));
        // The lanes of a track are shown one below the other.
        describe("thread_sort_index", process, thread, "sort_index", uint64_t(track) * 1000 + uint64_t(lane));
    }

    template <class Value>
    void describe(const char* what, int process, int thread, const char* member, const Value& value) {
        JsonText event;
        event.begin_object().add("name", what).add("ph", "M").add("pid", process);
        if (thread) event.add("tid", thread);
        write(event.begin_object("args").add(member, value).end_object().end_object());
    }

    void write(const JsonText& event) {
        const bool refused = file_.add((first_ ? "\n" : ",\n") + event.text()) != 0;
        first_ &= refused;
        failed_ |= refused;
    }

    std::mutex mutex_;
    platform::OutputFile file_;
    std::string path_;
    std::map<std::string, Process, std::less<>> runtimes_;
    bool first_ = true;
    bool failed_ = false;
};

// Never destroyed: threads may still record while the process exits.
Recorder& recorder() {
    static Recorder* const instance = [] {
        Recorder* const made = new Recorder;
        pthread_atfork([] { recorder().before_fork(); }, [] { recorder().after_fork(false); },
                       [] { recorder().after_fork(true); });
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
        if (Status status = trace_start(path); !status.ok())
            log_line(SH_LOG_WARNING, "STAGEHAND_TRACE: %s", status.text());
        else
            std::atexit([] { (void)trace_stop().ok(); });
    });
}

void trace_incomplete() noexcept {
    record([](Recorder& trace) { trace.add_nothing(); });
}

void trace_step(const char* runtime, uint64_t step, uint64_t begin_ns, uint64_t end_ns) noexcept {
    record([&](Recorder& trace) { trace.add(runtime, kSteps, "step " + std::to_string(step), begin_ns, end_ns); });
}

void trace_wait(const char* runtime, const char* block, uint64_t begin_ns, uint64_t end_ns) noexcept {
    record([&](Recorder& trace) { trace.add(runtime, kWaits, block, begin_ns, end_ns); });
}

void trace_load(const char* runtime, const char* block, uint64_t begin_ns, uint64_t end_ns, uint64_t bytes,
                uint64_t pieces) noexcept {
    record([&](Recorder& trace) {
        trace.add(runtime, kLoads, block, begin_ns, end_ns, {{"bytes", bytes}, {"pieces", pieces}});
    });
}

void trace_write_back(const char* runtime, const char* block, uint64_t begin_ns, uint64_t bytes) noexcept {
    record([&](Recorder& trace) { trace.add(runtime, kWriteBacks, block, begin_ns, begin_ns, {{"bytes", bytes}}); });
}

void trace_view(const char* runtime, const char* block, uint64_t begin_ns, uint64_t end_ns) noexcept {
    record([&](Recorder& trace) { trace.add(runtime, kViews, block, begin_ns, end_ns); });
}

void trace_plan(const char* runtime, const char* why, uint64_t begin_ns, uint64_t end_ns) noexcept {
    record([&](Recorder& trace) { trace.add(runtime, kPlans, why, begin_ns, end_ns); });
}

void trace_residency(const char* runtime, Residency how, uint64_t begin_ns, uint64_t end_ns, uint64_t bytes) noexcept {
    const Track track = how == Residency::kept ? kKept : how == Residency::reserved ? kReserved : kGuest;
    record([&](Recorder& trace) {
        trace.add(runtime, track, kTrackNames[track], begin_ns, end_ns, {{"bytes", bytes}});
    });
}

void trace_occupancy(const char* device, const OccupancySlice& slice) noexcept {
    record([&](Recorder& trace) {
        std::string name = slice.resumes ? "resume" : "pause";
        for (const char* const tag : slice.tags) (name += tag == slice.tags.front() ? " " : ", ") += tag;
        trace.add(device, kOccupancy, name, slice.begin_ns, slice.end_ns,
                  {{"device bytes", slice.device_bytes}, {"copied bytes", slice.copied_bytes}});
    });
}

void trace_memory(const char* runtime, uint64_t now_ns, uint64_t held_bytes) noexcept {
    record([&](Recorder& trace) { trace.count(runtime, "held bytes", now_ns, held_bytes); });
}

}  // namespace stagehand::telemetry
