#include "core/spill/stalls.h"

#include <utility>

namespace stagehand::core {
namespace {

// An engine that queues far ahead of the device has many waits open. Beyond these, waits are not measured.
constexpr size_t kMostOpen = 1024;
// Two events in a row are about this far apart without a wait between them.
constexpr int64_t kShortest = 10'000;

}  // namespace

void Stalls::stream_waits(sh_stream stream) noexcept {
    try {
        look();
        if (open_.size() >= kMostOpen || !make_probe()) return;
        if (!idle_.back().begin(stream).ok()) return;
        open_.push_back(std::move(idle_.back()));
        idle_.pop_back();
        measuring_ = true;
    } catch (...) {
    }
}

void Stalls::stream_goes_on(sh_stream stream) noexcept {
    if (!measuring_) return;
    measuring_ = false;
    if (open_.back().end(stream).ok()) return;
    idle_.push_back(std::move(open_.back()));
    open_.pop_back();
}

// Makes sure that a probe is idle.
bool Stalls::make_probe() {
    idle_.reserve(kMostOpen);
    if (idle_.empty()) idle_.emplace_back(device_);
    return idle_.back().open().ok();
}

void Stalls::host_waited(uint64_t ns) {
    if (!ns) return;
    count_++;
    ns_ += ns;
}

void Stalls::look() {
    while (!open_.empty() && read(open_.front())) {
        idle_.push_back(std::move(open_.front()));
        open_.pop_front();
    }
}

// Returns false while the wait goes on.
bool Stalls::read(const TimedSpan& probe) {
    bool ended = false;
    if (!probe.has_ended(&ended).ok()) return true;
    if (!ended) return false;
    int64_t ns = 0;
    if (probe.read(&ns).ok() && ns >= kShortest) host_waited(static_cast<uint64_t>(ns));
    return true;
}

void Stalls::forget() {
    for (TimedSpan& probe : open_) idle_.push_back(std::move(probe));
    open_.clear();
}

}  // namespace stagehand::core
