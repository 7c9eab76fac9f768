#include "core/contents/loader.h"

#include <algorithm>

#include "base/log.h"
#include "base/once_more.h"
#include "core/contents/on_load.h"
#include "telemetry/trace.h"

namespace stagehand::core {

Loader::Loader(BackendDevice& device, transfer::StagingEngine& staging, Registry& registry, Ring& ring, StreamTable& streams,
               EventPool& events, std::mutex& mutex, std::condition_variable& changed, sh_runtime_stats& stats,
               const std::string& runtime_name)
    : device_(device), staging_(staging), registry_(registry), ring_(ring), streams_(streams), events_(events), mutex_(mutex),
      changed_(changed), stats_(stats), runtime_name_(runtime_name), copies_(device, registry) {}

Loader::~Loader() {
    for (auto& load : loads_) events_.give(&load->done);
    if (copy_stream_ == SH_STREAM_HOST) return;
    if (Status status = once_more([&] { return device_.stream_destroy(copy_stream_); }); !status.ok()) log_line(SH_LOG_WARNING, "%s", status.text());
}

Status Loader::open() { return device_.stream_create(&copy_stream_); }

Load& Loader::take() {
    if (idle_.empty()) {
        loads_.push_back(std::make_unique<Load>());
        loads_.back()->loader = this;
        idle_.reserve(loads_.size());
        idle_.push_back(loads_.back().get());
    }
    Load& load = *idle_.back();
    idle_.pop_back();
    load.clear();
    return load;
}

void Loader::give(Unit& unit) {
    const Load& load = *unit.load;
    if (load.issued && telemetry::trace_on()) [[unlikely]]
        telemetry::trace_load(runtime_name_.c_str(), registry_.name_of(unit).c_str(), load.begun_ns, device_.now_ns(), load.bytes, load.pieces);
    idle_.push_back(unit.load);
    unit.load = nullptr;
}

void Loader::find_missing(Unit& unit, Load& load, uint32_t ring_pages) {
    const uint64_t page = registry_.page_bytes();
    const auto add = [&](uint64_t first, uint64_t count) {
        const uint64_t offset = first * page, end = std::min(unit.bytes, (first + count) * page);
        if (!load.ranges.empty() && load.ranges.back().offset + load.ranges.back().bytes == offset)
            load.ranges.back().bytes = end - load.ranges.back().offset;
        else
            load.ranges.push_back({offset, end - offset});
    };
    const uint32_t own = static_cast<uint32_t>(unit.own.size());
    load.own_from = unit.whole ? 0 : unit.own_valid;
    if (load.own_from < own) add(load.own_from, own - load.own_from);
    const uint32_t self = load.unit;
    for (uint32_t k = 0; k < std::min(unit.ring_pages, ring_pages); k++) {
        const Ring::Page& at = ring_.page_of(unit, k);
        if (at.contents == self && !(unit.whole && unit.ring_present < unit.ring_pages)) continue;
        const uint64_t fence = at.fence == kNone ? 0 : registry_.unit(at.fence).last_use;
        const bool joins = !load.runs.empty() && load.runs.back().first + load.runs.back().pages == k && load.runs.back().fence == fence;
        if (joins) load.runs.back().pages++;
        else load.runs.push_back({k, 1, fence});
        add(own + k, 1);
    }
    policy::cut_load(load.runs);
}

void Loader::forget_finished_launches() {
    std::erase_if(ring_.launches(), [this](sh_backend_event event) {
        uint32_t done = 0;
        return device_.event_query(event, &done).ok() && done;
    });
}

// The events that the copies must wait for: all uses, on all streams, of whatever lies in the pages.
Status Loader::find_fences(Unit& unit, Load& load) {
    // Pages of its own: only its own earlier uses can be in the way, when contents that were there are loaded anew. And a source
    // that is being written must have its bytes before it is read.
    if (load.own_from < unit.own.size()) SH_TRY(streams_.append_events(unit.used_streams, &load.waits));
    if (unit.written_back) load.waits.push_back(unit.written_back);
    load.own_waits = {0, static_cast<uint32_t>(load.waits.size())};
    if (!load.runs.empty()) forget_finished_launches();
    for (const policy::PageRun& run : load.runs) {
        const uint32_t first = static_cast<uint32_t>(load.waits.size());
        const auto push = [&](sh_backend_event event) {
            if (event && std::find(load.waits.begin() + first, load.waits.end(), event) == load.waits.end()) load.waits.push_back(event);
        };
        push(unit.written_back);
        for (const sh_backend_event launch : ring_.launches()) push(launch);
        uint32_t last = kNone;
        for (uint32_t k = run.first; k < run.first + run.pages; k++) {
            const uint32_t fence = ring_.page_of(unit, k).fence;
            if (fence == last || fence == kNone) continue;
            last = fence;
            const Unit& of = registry_.unit(fence);
            for (const UnitUse& use : of.uses) push(use.event);
            push(of.written_back);
        }
        load.run_waits.push_back({first, static_cast<uint32_t>(load.waits.size()) - first});
    }
    return Status();
}

// From here on the pages count as this unit's.
void Loader::take_pages(Unit& unit, Load& load) {
    const uint32_t self = static_cast<uint32_t>(&unit - registry_.units().data());
    for (const policy::PageRun& run : load.runs) {
        for (uint32_t k = run.first; k < run.first + run.pages; k++) {
            Ring::Page& at = ring_.page_of(unit, k);
            if (at.contents == self) continue;
            if (at.contents != kNone) {
                Unit& loser = registry_.unit(at.contents);
                loser.ring_present--;
                loser.ready = false;
            }
            at.contents = self;
            unit.ring_present++;
        }
    }
    unit.own_valid = static_cast<uint32_t>(unit.own.size());
    unit.ready = false;
    unit.serial++;
}

Status Loader::begin(Unit& unit, uint64_t deadline_ns) { return begin_part(unit, deadline_ns, unit.ring_pages); }

Status Loader::begin_part(Unit& unit, uint64_t deadline_ns, uint32_t ring_pages) {
    if (unit.load) give(unit);   // an earlier one was issued to the same stream: its order needs no care
    Load& load = take();
    load.unit = static_cast<uint32_t>(&unit - registry_.units().data());
    load.begun_ns = device_.now_ns();
    find_missing(unit, load, ring_pages);
    unit.load = &load;
    Status status = find_fences(unit, load);
    if (status.ok()) {
        take_pages(unit, load);
        stats_.loads++;
        status = issue(unit, load, deadline_ns);
    }
    if (!status.ok()) {
        fail(unit, load, status);
        give(unit);
    }
    return status;
}

Status Loader::issue(Unit& unit, Load& load, uint64_t deadline_ns) {
    copies_.clear();
    const uint64_t page = registry_.page_bytes();
    const uint64_t own_bytes = unit.own.size() * page;
    if (load.own_from < unit.own.size())
        copies_.add(unit, load.own_from * page, std::min(own_bytes, unit.bytes), load.own_waits, &load.staged.extents);
    for (size_t i = 0; i < load.runs.size(); i++) {
        const uint64_t begin = own_bytes + load.runs[i].first * page;
        copies_.add(unit, begin, std::min(unit.bytes, begin + load.runs[i].pages * page), load.run_waits[i], &load.staged.extents);
    }
    if (!device_.has(SH_BACKEND_CONTENTLESS)) copies_.gather_small(&load.staged.extents);
    SH_TRY(copies_.issue(copy_stream_, load.waits, &load.pieces, &load.bytes));
    if (load.staged.extents.empty()) return complete(unit, load);
    load.staged.waits = load.waits;
    load.staged.stream = copy_stream_;
    load.staged.deadline_ns = deadline_ns;
    load.staged.context = &load;
    load.staged.finished = staged_finished;
    load.queued = true;
    queued_++;
    if (Status status = staging_.submit(load.staged); !status.ok()) {
        load.queued = false;
        queued_--;
        return status;
    }
    return Status();
}

// All copies have been issued: the engine's callback, then the event that uses wait for.
Status Loader::complete(Unit& unit, Load& load) {
    load.pieces += load.staged.issued_pieces;
    load.bytes += load.staged.issued_bytes;
    stats_.load_pieces += load.pieces;
    stats_.bytes_to_device += load.bytes;
    SH_TRY(call_on_load(registry_, unit, load.ranges, copy_stream_));
    if (!load.done) SH_TRY(events_.take(&load.done));
    SH_TRY(device_.event_record(load.done, copy_stream_));
    load.issued = true;
    // The unit's earlier uses stay noted: pages that were not loaded anew may still be read by them.
    for (const policy::PageRun& run : load.runs)
        for (uint32_t k = run.first; k < run.first + run.pages; k++) ring_.page_of(unit, k).fence = load.unit;
    return Status();
}

// What was to be loaded is undefined now; fences stay as they were, so whoever comes next waits for the same uses.
void Loader::fail(Unit& unit, Load& load, Status status) {
    const uint32_t self = load.unit;
    unit.own_valid = std::min(unit.own_valid, load.own_from);
    for (const policy::PageRun& run : load.runs) {
        for (uint32_t k = run.first; k < run.first + run.pages; k++) {
            Ring::Page& at = ring_.page_of(unit, k);
            if (at.contents != self) continue;
            at.contents = kNone;
            unit.ring_present--;
        }
    }
    unit.ready = false;
    broken_off_++;
    if (status.code() == SH_ERROR_CANCELLED) stats_.cancelled_loads++;
    else stats_.failed_loads++;
    last_failure_ = load.failure = std::move(status);
}

void Loader::staged_finished(void* context, transfer::StagedLoad&, const Status& result) {
    Load& load = *static_cast<Load*>(context);
    Loader& loader = *load.loader;
    std::lock_guard lock(loader.mutex_);
    Unit& unit = loader.registry_.unit(load.unit);
    Status status = result;
    if (status.ok()) {
        status = loader.complete(unit, load);
    } else if (status.code() != SH_ERROR_CANCELLED) {
        const bool alone = unit.block_count == 1;   // else nobody knows here whose source it was
        status = status.within(loader.registry_.name_of(unit) + (alone ? "" : " or one that shares its pages"));
    }
    load.queued = false;
    loader.queued_--;
    if (!status.ok()) loader.fail(unit, load, status);
    loader.changed_.notify_all();
}

Status Loader::wait_issued(Unit& unit, std::unique_lock<std::mutex>& lock, uint64_t deadline_ns) {
    if (!unit.load) return Status();
    if (unit.load->queued) staging_.hurry(unit.load->staged, deadline_ns);
    changed_.wait(lock, [&] { return !unit.load || !unit.load->queued; });
    if (!unit.load || unit.load->issued) return Status();
    Status failure = unit.load->failure;
    give(unit);
    return failure;
}

Status Loader::wait_done(Unit& unit, std::unique_lock<std::mutex>& lock) {
    if (!unit.load || !unit.load->issued) return Status();
    const Load* const load = unit.load;
    const uint64_t serial = unit.serial;
    const sh_backend_event done = load->done;
    // Others go on meanwhile. The unit is held, so no new load of it begins; at worst the event is used again and this waits longer.
    lock.unlock();
    Status status = device_.event_synchronize(done);
    lock.lock();
    if (unit.load != load || unit.serial != serial) return status;
    if (!status.ok()) fail(unit, *unit.load, status);
    else unit.ready = unit.current();
    give(unit);
    return status;
}

Status Loader::wait_read(Unit& unit, std::unique_lock<std::mutex>& lock) {
    if (known_over_ < broken_off_) {
        const uint64_t now = broken_off_;
        lock.unlock();
        Status status = synchronize();
        lock.lock();
        SH_TRY(status);
        known_over_ = std::max(known_over_, now);
    }
    return wait_done(unit, lock);
}

Status Loader::wait_done_here(Unit& unit) {
    if (known_over_ < broken_off_) SH_TRY(synchronize());
    known_over_ = broken_off_;
    if (!unit.load || !unit.load->issued) return Status();
    Status status = device_.event_synchronize(unit.load->done);
    if (!status.ok()) fail(unit, *unit.load, status);
    else unit.ready = unit.current();
    give(unit);
    return status;
}

bool Loader::settle(Unit& unit, Status* failure) {
    if (!unit.load) return true;
    if (!unit.load->issued) return false;
    uint32_t done = 0;
    if (Status status = device_.event_query(unit.load->done, &done); !status.ok()) {
        *failure = status;
        fail(unit, *unit.load, status);
        give(unit);
        return true;
    }
    if (!done) return false;
    give(unit);
    unit.ready = unit.current();
    return true;
}

void Loader::settle_all() {
    for (const auto& load : loads_) {
        Unit& unit = registry_.unit(load->unit);
        Status failure;   // whoever acquires the unit finds its bytes missing and loads them anew
        if (unit.load == load.get()) settle(unit, &failure);
    }
}

void Loader::cancel(Unit& unit, std::unique_lock<std::mutex>& lock) {
    if (!unit.load || !unit.load->queued) return;
    if (staging_.cancel(unit.load->staged)) {
        unit.load->queued = false;
        queued_--;
        fail(unit, *unit.load, Status(SH_ERROR_CANCELLED));
        give(unit);
        changed_.notify_all();
        return;
    }
    changed_.wait(lock, [&] { return !unit.load || !unit.load->queued; });
    if (unit.load && !unit.load->issued) give(unit);
}

void Loader::drain(std::unique_lock<std::mutex>& lock) {
    for (uint32_t i = 0; i < registry_.units().size(); i++) cancel(registry_.unit(i), lock);
    changed_.wait(lock, [&] { return queued_ == 0; });
}

Status Loader::synchronize() { return device_.stream_synchronize(copy_stream_); }

}  // namespace stagehand::core
