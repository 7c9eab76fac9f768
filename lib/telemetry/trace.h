// The trace of a process: what happened when, in the JSON format that Perfetto opens.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace stagehand::telemetry {

Status trace_start(const char* path);
Status trace_stop();
// Starts a trace when STAGEHAND_TRACE names a file; called when the first device opens. It is completed when the
// process exits.
void trace_start_from_environment();

// Whether a trace is being recorded: asked before names are made for it.
extern std::atomic<bool> tracing;
inline bool trace_on() { return tracing.load(std::memory_order_relaxed); }

// Nothing happens when nothing is recorded, or there is no memory for it. Times are of the device's clock, in
// nanoseconds; names are copied.
void trace_incomplete() noexcept;
// Calls what makes names for an event, which may take memory: what finds none is left out, and the trace is not whole.
template <class Event>
void trace_named(Event&& event) noexcept {
    try {
        event();
    } catch (...) {
        trace_incomplete();
    }
}
void trace_step(const char* runtime, uint64_t step, uint64_t begin_ns, uint64_t end_ns) noexcept;
void trace_wait(const char* runtime, const char* block, uint64_t begin_ns, uint64_t end_ns) noexcept;
// A load ends when its completion is noticed, which may be a little later than it was.
void trace_load(const char* runtime, const char* block, uint64_t begin_ns, uint64_t end_ns, uint64_t bytes,
                uint64_t pieces) noexcept;
void trace_write_back(const char* runtime, const char* block, uint64_t begin_ns, uint64_t bytes) noexcept;
void trace_view(const char* runtime, const char* block, uint64_t begin_ns, uint64_t end_ns) noexcept;
// `why`: an event's name, which stays.
void trace_plan(const char* runtime, const char* why, uint64_t begin_ns, uint64_t end_ns) noexcept;
// A time in which a runtime was kept resident, reserved for, or a guest; with the bytes that it began or ended with.
enum class Residency { kept, reserved, guest };
void trace_residency(const char* runtime, Residency how, uint64_t begin_ns, uint64_t end_ns, uint64_t bytes) noexcept;
// A pause or a resume of tags, on a device.
struct OccupancySlice {
    bool resumes = false;
    std::span<const char* const> tags;
    uint64_t begin_ns = 0, end_ns = 0;
    uint64_t device_bytes = 0, copied_bytes = 0;
};
void trace_occupancy(const char* device, const OccupancySlice& slice) noexcept;
// What a runtime holds from now on.
void trace_memory(const char* runtime, uint64_t now_ns, uint64_t held_bytes) noexcept;

}  // namespace stagehand::telemetry
