#include "core/spill/stalls.h"

#include "base/once_more.h"

namespace stagehand::core {
namespace {

// An engine that queues far ahead of the device has many waits open. Beyond these, waits are not measured.
constexpr size_t kMostOpen = 1024;
// Two events in a row are about this far apart without a wait between them.
constexpr int64_t kShortest = 10'000;

}  // namespace

Stalls::~Stalls() {
    forget();
    for (const Probe& probe : idle_)
        for (const sh_backend_event event : {probe.before, probe.after})
            if (event) (void)once_more([&] { return device_.event_destroy(event); }).ok();
}

void Stalls::stream_waits(sh_stream stream) noexcept {
    try {
        look();
        if (open_.size() >= kMostOpen || !make_probe()) return;
        if (!device_.event_record(idle_.back().before, stream).ok()) return;
        open_.push_back(idle_.back());
        idle_.pop_back();
        measuring_ = true;
    } catch (...) {
    }
}

void Stalls::stream_goes_on(sh_stream stream) noexcept {
    if (!measuring_) return;
    measuring_ = false;
    if (device_.event_record(open_.back().after, stream).ok()) return;
    idle_.push_back(open_.back());
    open_.pop_back();
}

// Makes sure that a probe is idle.
bool Stalls::make_probe() {
    if (!idle_.empty() && idle_.back().before && idle_.back().after) return true;
    idle_.reserve(kMostOpen);
    if (idle_.empty()) idle_.emplace_back();
    for (sh_backend_event* const event : {&idle_.back().before, &idle_.back().after})
        if (!*event && !device_.event_create(true, event).ok()) return false;
    return true;
}

void Stalls::host_waited(uint64_t ns) {
    if (!ns) return;
    count_++;
    ns_ += ns;
}

void Stalls::look() {
    while (!open_.empty() && read(open_.front())) {
        idle_.push_back(open_.front());
        open_.pop_front();
    }
}

// Returns false while the wait goes on.
bool Stalls::read(const Probe& probe) {
    uint32_t done = 0;
    if (!device_.event_query(probe.after, &done).ok()) return true;
    if (!done) return false;
    int64_t ns = 0;
    if (device_.event_elapsed(probe.before, probe.after, &ns).ok() && ns >= kShortest)
        host_waited(static_cast<uint64_t>(ns));
    return true;
}

void Stalls::forget() {
    idle_.insert(idle_.end(), open_.begin(), open_.end());
    open_.clear();
}

}  // namespace stagehand::core
