#include "core/movement/write_back.h"

#include <algorithm>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/once_more.h"
#include "base/unlocked.h"
#include "core/movement/load.h"
#include "telemetry/trace.h"

namespace stagehand::core {

WriteBack::WriteBack(BackendDevice& device, transfer::StagingEngine& staging, Registry& registry, Changes& changes, StreamTable& streams,
                     std::mutex& mutex, std::condition_variable& changed, sh_runtime_stats& stats, const std::string& runtime_name)
    : device_(device), staging_(staging), registry_(registry), changes_(changes), streams_(streams), mutex_(mutex), changed_(changed),
      stats_(stats), runtime_name_(runtime_name) {}

WriteBack::~WriteBack() {
    if (stream_ == SH_STREAM_HOST) return;
    if (Status status = once_more([&] { return device_.stream_destroy(stream_); }); !status.ok()) log_line(SH_LOG_WARNING, "%s", status.text());
}

Status WriteBack::open() { return device_.stream_create(&stream_); }

WriteBack::Store& WriteBack::take() {
    if (idle_.empty()) {
        idle_.reserve(stores_.size() + 1);   // so that giving back cannot fail
        stores_.push_back(std::make_unique<Store>());
        stores_.back()->owner = this;
        idle_.push_back(stores_.back().get());
    }
    Store& store = *idle_.back();
    idle_.pop_back();
    store.staged.extents.clear();
    store.staged.waits.clear();
    return store;
}

Status WriteBack::begin(Unit& unit, Part part) {
    if (unit.writing() != Writing::none || !changes_.is_dirty(unit, part)) return Status();
    SH_TRY(changes_.take_event(unit));
    Store& store = take();
    store.unit = registry_.index_of(unit);
    Status status;
    if (changes_.begin(unit, part)) status = no_throw([&] { return issue(unit, store); });
    if (unit.writing() == Writing::none) {   // no workers have it
        changes_.end(unit, status.ok());
        idle_.push_back(&store);
    }
    return status;
}

Status WriteBack::issue(Unit& unit, Store& store) {
    SH_TRY(streams_.append_events(unit.used_streams(), &store.staged.waits));
    for (const UnitUse& use : unit.uses()) store.staged.waits.push_back(use.event);
    if (unit.load() && unit.load()->issued) store.staged.waits.push_back(unit.load()->done);
    for (const sh_backend_event event : store.staged.waits) SH_TRY(device_.stream_wait_event(stream_, event));
    const uint64_t bytes_before = stats_.bytes_to_host;
    Status status = collect(unit, store);
    // Also after a failure: what was queued before it still reads the unit and writes its source.
    changes_.reads(unit, false);
    if (Status recorded = device_.event_record(unit.written_back(), stream_); !recorded.ok()) {
        if (status.ok()) status = recorded;
        (void)once_more([&] { return device_.stream_synchronize(stream_); }).ok();   // without an event nobody could wait for it later
    }
    SH_TRY(status);
    stats_.write_backs++;
    if (telemetry::trace_on())
        telemetry::trace_write_back(runtime_name_.c_str(), registry_.name_of(unit).c_str(), device_.now_ns(), stats_.bytes_to_host - bytes_before);
    return store.staged.extents.empty() ? Status() : submit(unit, store);
}

// Copies to pinned sources are issued here; the others become extents for the workers.
Status WriteBack::collect(Unit& unit, Store& store) {
    const uint64_t own_end = unit.own.size() * registry_.page_bytes();
    for (const Block& block : registry_.blocks_of(unit)) {
        const uint64_t from = block.written_own() ? 0 : own_end, to = block.written_ring() ? unit.bytes : own_end;
        if (!block.id || !block.written() || from >= to) continue;
        for (const Segment& segment : block.detail->segments) {
            const uint64_t begin = std::max(from, segment.offset), end = std::min(to, segment.offset + segment.bytes);
            if (begin >= end) continue;
            char* const host = static_cast<char*>(segment.source.pointer) + (begin - segment.offset);
            if (segment.direct) SH_TRY(device_.copy_to_host(stream_, host, unit.address + begin, end - begin));
            else store.staged.extents.push_back({host, unit.address + begin, end - begin});
            stats_.bytes_to_host += end - begin;
        }
    }
    return Status();
}

Status WriteBack::submit(Unit& unit, Store& store) {
    store.staged.stream = stream_;
    store.staged.deadline_ns = device_.now_ns();
    store.staged.read = unit.written_back();
    store.staged.context = &store;
    store.staged.device_read = store_read;
    store.staged.finished = store_finished;
    SH_TRY(staging_.submit(store.staged));
    changes_.reads(unit, true);
    pending_++;
    return Status();
}

void WriteBack::store_read(void* context, transfer::StagedStore&) {
    Store& store = *static_cast<Store*>(context);
    WriteBack& self = *store.owner;
    std::lock_guard lock(self.mutex_);
    self.changes_.read(self.registry_.unit(store.unit));
    self.changed_.notify_all();
}

void WriteBack::store_finished(void* context, transfer::StagedStore&, const Status& status) {
    Store& store = *static_cast<Store*>(context);
    WriteBack& self = *store.owner;
    std::lock_guard lock(self.mutex_);
    Unit& unit = self.registry_.unit(store.unit);
    self.changes_.end(unit, status.ok());
    self.pending_--;
    self.idle_.push_back(&store);
    Status failure = status;
    if (status.ok() && unit.dirty() && unit.held == 0) failure = no_throw([&] { return self.begin(unit, Part::ring); });   // dirty again meanwhile
    if (!failure.ok()) self.failure_ = no_throw([&] { return failure.within("writing a block back"); });
    self.changed_.notify_all();
}

Status WriteBack::wait(Unit& unit, std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [&] { return unit.writing() == Writing::none; });
    return take_failure();
}

bool WriteBack::is_flushed(Unit& unit, const Block& block) { return !block.dirty() && !block.written() && changes_.has_landed(unit); }

Status WriteBack::flush(std::span<const uint32_t> blocks, std::unique_lock<std::mutex>& lock) {
    const auto each = [&](auto&& work) -> Status {
        for (const uint32_t index : blocks)
            if (Block& block = registry_.block(index); block.id) SH_TRY(work(block, registry_.unit(block.unit)));
        return Status();
    };
    SH_TRY(each([&](Block& block, Unit&) {
        return block.dirty() && block.held ? Status(SH_ERROR_BUSY, registry_.name_of(block) + " is dirty and held") : Status();
    }));
    SH_TRY(each([&](Block& block, Unit& unit) { return block.dirty() ? begin(unit, Part::all) : Status(); }));   // all at once
    return each([&](Block& block, Unit& unit) -> Status {
        const sh_block id = block.id;
        while (block.id == id && !is_flushed(unit, block)) {   // asked anew after each wait
            if (unit.writing() != Writing::none) {
                SH_TRY(wait(unit, lock));
            } else if (block.dirty()) {
                if (block.held) return Status(SH_ERROR_BUSY, registry_.name_of(block) + " is dirty and held");
                SH_TRY(begin(unit, Part::all));
            } else {
                const sh_backend_event landed = unit.written_back();
                SH_TRY(unlocked(lock, [&] { return device_.event_synchronize(landed); }));
            }
        }
        return Status();
    });
}

Status WriteBack::flush(const Unit& unit, std::unique_lock<std::mutex>& lock) {
    std::vector<uint32_t> blocks;
    for (const Block& block : registry_.blocks_of(unit)) blocks.push_back(registry_.index_of(block));
    return flush(blocks, lock);
}

Status WriteBack::order_after(Unit& unit, sh_stream stream, bool may_wait, std::unique_lock<std::mutex>& lock, bool* out_waited) {
    while (unit.hindered_by(kBeingRead)) {   // asked anew after each wait
        if (unit.writing() == Writing::queued) {
            if (!may_wait) return Status(SH_NOT_READY);
            *out_waited = true;
            changed_.wait(lock, [&] { return unit.writing() != Writing::queued; });
            continue;
        }
        const sh_backend_event read = unit.written_back();
        uint32_t done = 0;
        SH_TRY(device_.event_query(read, &done));
        if (!done && stream != SH_STREAM_HOST) return device_.stream_wait_event(stream, read);
        if (!done) {
            if (!may_wait) return Status(SH_NOT_READY);
            *out_waited = true;
            SH_TRY(unlocked(lock, [&] { return device_.event_synchronize(read); }));   // others go on meanwhile
            continue;
        }
        changes_.followed(unit);
    }
    return Status();
}

void WriteBack::drain(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [&] { return pending_ == 0; });
}

}  // namespace stagehand::core
