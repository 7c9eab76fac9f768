#include "core/contents/write_back.h"

#include <algorithm>

#include "base/log.h"
#include "base/once_more.h"
#include "telemetry/trace.h"

namespace stagehand::core {

WriteBack::WriteBack(BackendDevice& device, transfer::StagingEngine& staging, Registry& registry, StreamTable& streams, EventPool& events,
                     std::mutex& mutex, std::condition_variable& changed, sh_runtime_stats& stats, const std::string& runtime_name)
    : device_(device), staging_(staging), registry_(registry), streams_(streams), events_(events), mutex_(mutex), changed_(changed),
      stats_(stats), runtime_name_(runtime_name) {}

WriteBack::~WriteBack() {
    if (stream_ == SH_STREAM_HOST) return;
    if (Status status = once_more([&] { return device_.stream_destroy(stream_); }); !status.ok()) log_line(SH_LOG_WARNING, "%s", status.text());
}

Status WriteBack::open() { return device_.stream_create(&stream_); }

bool WriteBack::is_dirty(const Unit& unit, Part part) {
    for (const Block& block : registry_.blocks_of(unit))
        if (block.dirty_ring || (part == Part::all && block.dirty_own)) return true;
    return false;
}

// What is being written counts as clean: the engine may make it dirty again meanwhile.
void WriteBack::take_dirt(Unit& unit, Part part, Store& store) {
    for (Block& block : registry_.blocks_of(unit)) {
        const Dirt dirt{registry_.index_of(block), block.dirty_own && part == Part::all, block.dirty_ring};
        if (!dirt.own && !dirt.ring) continue;
        store.dirt.push_back(dirt);
        block.dirty_ring = false;
        if (dirt.own) block.dirty_own = false;
    }
    unit.dirty = false;
}

void WriteBack::give_back_dirt(Unit& unit, const Store& store) {
    for (const Dirt& dirt : store.dirt) {
        Block& block = registry_.block(dirt.block);
        block.dirty_own |= dirt.own;
        block.dirty_ring |= dirt.ring;
        unit.dirty |= dirt.ring;
    }
}

// Copies to pinned sources are issued here; the others become extents for the workers.
Status WriteBack::collect(Unit& unit, Part part, Store& store) {
    const uint64_t own_end = unit.own.size() * registry_.page_bytes();
    for (Block& block : registry_.blocks_of(unit)) {
        const uint64_t from = block.dirty_own && part == Part::all ? 0 : own_end;
        const uint64_t to = block.dirty_ring ? unit.bytes : own_end;
        if (!block.id || !(block.dirty_ring || block.dirty_own) || from >= to) continue;
        for (const Segment& segment : block.detail->segments) {
            const uint64_t begin = std::max(from, segment.offset), end = std::min(to, segment.offset + segment.bytes);
            if (begin >= end) continue;
            char* const host = static_cast<char*>(segment.source.pointer) + (begin - segment.offset);
            stats_.bytes_to_host += end - begin;
            if (segment.direct) SH_TRY(device_.copy_to_host(stream_, host, unit.address + begin, end - begin));
            else store.staged.extents.push_back({host, unit.address + begin, end - begin});
        }
    }
    return Status();
}

Status WriteBack::begin(Unit& unit, Part part) {
    if (unit.writing_back || !is_dirty(unit, part)) return Status();
    if (idle_.empty()) {
        stores_.push_back(std::make_unique<Store>());
        stores_.back()->owner = this;
        idle_.push_back(stores_.back().get());
    }
    Store& store = *idle_.back();
    store.unit = static_cast<uint32_t>(&unit - registry_.units().data());
    store.dirt.clear();
    store.staged.extents.clear();
    store.staged.waits.clear();
    if (!unit.written_back) SH_TRY(events_.take(&unit.written_back));
    unit.ready = false;
    unit.being_read = true;
    SH_TRY(streams_.append_events(unit.used_streams, &store.staged.waits));
    for (const UnitUse& use : unit.uses) store.staged.waits.push_back(use.event);
    if (unit.load && unit.load->issued) store.staged.waits.push_back(unit.load->done);
    for (const sh_backend_event event : store.staged.waits) SH_TRY(device_.stream_wait_event(stream_, event));
    const uint64_t bytes_before = stats_.bytes_to_host;
    SH_TRY(collect(unit, part, store));
    SH_TRY(device_.event_record(unit.written_back, stream_));
    stats_.write_backs++;
    if (telemetry::trace_on())
        telemetry::trace_write_back(runtime_name_.c_str(), registry_.name_of(unit).c_str(), device_.now_ns(), stats_.bytes_to_host - bytes_before);
    if (store.staged.extents.empty()) {
        take_dirt(unit, part, store);
        return Status();
    }
    store.staged.stream = stream_;
    store.staged.deadline_ns = device_.now_ns();
    store.staged.read = unit.written_back;
    store.staged.context = &store;
    store.staged.device_read = store_read;
    store.staged.finished = store_finished;
    SH_TRY(staging_.submit(store.staged));
    idle_.pop_back();
    unit.writing_back = unit.read_queued = true;
    pending_++;
    take_dirt(unit, part, store);
    return Status();
}

void WriteBack::store_read(void* context, transfer::StagedStore&) {
    Store& store = *static_cast<Store*>(context);
    WriteBack& self = *store.owner;
    std::lock_guard lock(self.mutex_);
    self.registry_.unit(store.unit).read_queued = false;
    self.changed_.notify_all();
}

void WriteBack::store_finished(void* context, transfer::StagedStore&, const Status& status) {
    Store& store = *static_cast<Store*>(context);
    WriteBack& self = *store.owner;
    std::lock_guard lock(self.mutex_);
    Unit& unit = self.registry_.unit(store.unit);
    unit.writing_back = unit.read_queued = false;
    self.pending_--;
    self.idle_.push_back(&store);
    Status next;
    if (!status.ok()) self.give_back_dirt(unit, store);
    else if (unit.dirty && unit.held == 0) next = self.begin(unit, Part::ring);   // dirty again meanwhile
    if (!status.ok() || !next.ok()) self.failure_ = (status.ok() ? next : status).within("writing a block back");
    self.changed_.notify_all();
}

Status WriteBack::wait(Unit& unit, std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [&] { return !unit.writing_back; });
    SH_TRY(take_failure());
    return unit.written_back ? device_.event_synchronize(unit.written_back) : Status();
}

Status WriteBack::flush(Unit& unit, std::unique_lock<std::mutex>& lock) {
    for (;;) {
        SH_TRY(wait(unit, lock));
        if (unit.held || unit.writing_back || !is_dirty(unit, Part::all)) return Status();
        SH_TRY(begin(unit, Part::all));
    }
}

Status WriteBack::order_after(Unit& unit, sh_stream stream, bool may_wait, std::unique_lock<std::mutex>& lock, bool* out_waited) {
    if (!unit.being_read) return Status();
    if (unit.read_queued) {
        if (!may_wait) return Status(SH_NOT_READY);
        *out_waited = true;
        changed_.wait(lock, [&] { return !unit.read_queued; });
    }
    uint32_t done = 0;
    SH_TRY(device_.event_query(unit.written_back, &done));
    if (!done && stream != SH_STREAM_HOST) return device_.stream_wait_event(stream, unit.written_back);
    if (!done) {
        if (!may_wait) return Status(SH_NOT_READY);
        *out_waited = true;
        const sh_backend_event read = unit.written_back;
        lock.unlock();   // others go on meanwhile; the unit is held, so it is not written back again
        Status status = device_.event_synchronize(read);
        lock.lock();
        SH_TRY(status);
    }
    unit.being_read = false;
    return Status();
}

void WriteBack::drain(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [&] { return pending_ == 0; });
}

}  // namespace stagehand::core
