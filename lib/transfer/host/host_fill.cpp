#include "transfer/host/host_fill.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/size_text.h"
#include "platform/anonymous_memory.h"
#include "platform/host_memory.h"
#include "platform/thread.h"

namespace stagehand::transfer {
namespace {

constexpr uint64_t kUnit = uint64_t(32) << 20;  // one thread makes this much present at a time
constexpr uint64_t kTouchThreads = 8;           // more gain nothing: clearing pages then fills the memory bandwidth
constexpr uint64_t kPinThreads = 4;             // each call costs time for itself, which matters for small memories

// The kernel ends processes when memory that was promised is missing.
Status check_room(uint64_t bytes) {
    const platform::HostMemory host = platform::read_host_memory();
    if (bytes <= host.available_bytes) return Status();
    return Status(SH_ERROR_OUT_OF_HOST_MEMORY, size_text(bytes) + " of host memory are needed, but only " +
                                                   size_text(host.available_bytes) + " are left");
}

}  // namespace

Status HostFill::start(const std::vector<GradualMemory*>& memories, Note note) {
    stop();
    plan(memories);
    uint64_t bytes = 0;
    for (const Piece& piece : pieces_) bytes += piece.bytes;
    if (!device_.host_policy().allocate) SH_TRY(check_room(bytes));  // the engine's allocator has given it
    note_ = std::move(note);
    next_unit_ = next_memory_ = 0;
    refused_ = stopping_ = false;
    status_ = Status();
    const Status begun = pieces_.empty() ? Status() : begin_threads();
    if (!begun.ok()) stop();
    return begun;
}

void HostFill::plan(const std::vector<GradualMemory*>& memories) {
    memories_ = memories;
    pieces_.clear();
    units_.clear();
    for (size_t i = 0; i < memories_.size(); i++) {
        const GradualMemory& memory = *memories_[i];
        ready_[&memory] = {memory.ready_bytes(), memory.pinned_bytes()};
        for (uint64_t at = memory.ready_bytes(); at < memory.reserved_bytes(); at += GradualMemory::kPieceBytes) {
            const uint64_t end = at + memory.piece_at(at);
            pieces_.push_back({i, at, end - at, (end - at + kUnit - 1) / kUnit});
            for (uint64_t unit = at; unit < end; unit += kUnit)
                units_.push_back({pieces_.size() - 1, unit, std::min(kUnit, end - unit)});
        }
    }
}

Status HostFill::begin_threads() {
    const uint64_t cores = platform::usable_cores();
    const uint64_t pinning = std::min<uint64_t>({memories_.size(), cores, kPinThreads});
    const uint64_t touching = std::min<uint64_t>({units_.size(), cores, kTouchThreads});
    threads_.reserve(pinning + touching);
    // None works before all are there: the system maps no stack while others make pages present.
    const std::lock_guard lock(mutex_);
    // One of each kind comes first, because the work needs both. Fewer of a kind do the work too.
    for (uint64_t i = 0; i < std::max(pinning, touching); i++) {
        const Status pins = i < pinning ? begin_thread("sh-pin", &HostFill::pin_memories) : Status();
        const Status touches = i < touching ? begin_thread("sh-touch", &HostFill::touch_units) : Status();
        if (i == 0) SH_TRY(pins);
        if (i == 0) SH_TRY(touches);
    }
    return Status();
}

Status HostFill::begin_thread(const char* name, void (HostFill::*work)()) {
    return platform::start_thread(
        name, [this, work] { (this->*work)(); }, &threads_.emplace_back());
}

void HostFill::touch_units() {
    for (size_t next; (next = next_unit_.fetch_add(1)) < units_.size();) {
        const Unit& unit = units_[next];
        {
            const std::lock_guard lock(mutex_);
            if (stopping_) return;
        }
        char* const begin = static_cast<char*>(memories_[pieces_[unit.piece].memory]->data()) + unit.offset;
        const Status touched = no_throw([&] { return platform::touch_here(begin, unit.bytes); });
        if (!touched.ok()) return fail(touched);
        const std::lock_guard lock(mutex_);
        if (--pieces_[unit.piece].units == 0) changed_.notify_all();
    }
}

// Pages become present in this order too, so a thread that waits for a piece keeps no other memory waiting.
void HostFill::pin_memories() {
    if (!device_.thread_begin().ok()) refused_ = true;
    for (size_t next; (next = next_memory_.fetch_add(1)) < memories_.size();)
        for (auto at = std::ranges::lower_bound(pieces_, next, {}, &Piece::memory);
             at != pieces_.end() && at->memory == next; ++at)
            if (!make_ready(*at)) return;
}

bool HostFill::make_ready(const Piece& piece) {
    {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopping_ || piece.units == 0; });
        if (stopping_) return false;
    }
    GradualMemory& memory = *memories_[piece.memory];
    note_(piece.memory, memory.pins() && pin(static_cast<char*>(memory.data()) + piece.offset, piece.bytes));
    const std::lock_guard lock(mutex_);
    ready_[&memory] = {piece.offset + piece.bytes, memory.pinned_bytes()};
    changed_.notify_all();
    return true;
}

bool HostFill::pin(char* begin, uint64_t bytes) {
    if (refused_) return false;  // more calls would only be refused too
    if (device_.host_policy().is_pinned) return true;
    const Status status = device_.host_register(begin, bytes);
    if (status.ok()) return true;
    refused_ = true;
    log_line(SH_LOG_WARNING, "host memory cannot be pinned, so copies of it are slow: %s", status.text());
    return false;
}

void HostFill::fail(Status status) noexcept {
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
    stopping_ = true;
    changed_.notify_all();
}

Status HostFill::wait_for(const GradualMemory& memory, uint64_t end, bool* out_pinned) {
    std::unique_lock lock(mutex_);
    const auto found = ready_.find(&memory);
    if (found == ready_.end()) {
        *out_pinned = memory.pinned_bytes() >= end;
        return Status();
    }
    const Ready& ready = found->second;
    changed_.wait(lock, [&] { return stopping_ || ready.bytes >= end; });
    *out_pinned = ready.pinned_bytes >= end;
    if (ready.bytes >= end) return Status();
    return status_.ok() ? Status(SH_ERROR_INTERNAL, "the preparation of host memory was stopped") : status_;
}

void HostFill::stop() noexcept {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        changed_.notify_all();
    }
    for (std::thread& thread : threads_)
        if (thread.joinable()) thread.join();
    threads_.clear();
    const std::lock_guard lock(mutex_);
    ready_.clear();
}

}  // namespace stagehand::transfer
