#include "core/movement/write_back.h"

#include <algorithm>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/once_more.h"
#include "base/unlocked.h"
#include "core/memory/block_sources.h"
#include "core/movement/load.h"
#include "telemetry/trace.h"

namespace stagehand::core {

WriteBack::WriteBack(Device& device, Registry& registry, Changes& changes, StreamTable& streams, std::mutex& mutex,
                     std::condition_variable& changed, sh_runtime_stats& stats, const std::string& runtime_name)
    : device_(device.backend()),
      staging_(device.staging()),
      link_(device.links().to_host),
      registry_(registry),
      changes_(changes),
      streams_(streams),
      mutex_(mutex),
      changed_(changed),
      stats_(stats),
      runtime_name_(runtime_name),
      lane_(device, transfer::Direction::to_host) {}

WriteBack::Store& WriteBack::take() {
    Store& store = stores_.take([this](Store& made) { made.owner = this; });
    store.straight.clear();
    store.staged.extents.clear();
    store.staged.waits.clear();
    return store;
}

Status WriteBack::begin(Unit& unit, Part part) {
    if (unit.memory == Memory::none || unit.writing() != Writing::none) return Status();
    if (!changes_.is_dirty(unit, part)) return Status();
    SH_TRY(changes_.take_event(unit));
    Store& store = take();
    store.unit = registry_.index_of(unit);
    Status status;
    if (changes_.begin(unit, part)) status = no_throw([&] { return issue(unit, store); });
    if (unit.writing() == Writing::none) {  // workers do not have the write-back
        changes_.end(unit, status.ok());
        stores_.give(store);
    }
    return status;
}

Status WriteBack::issue(Unit& unit, Store& store) {
    SH_TRY(streams_.append_events(unit.used_streams(), &store.staged.waits));
    if (unit.load() && unit.load()->issued) store.staged.waits.push_back(unit.load()->done);
    const uint64_t bytes_before = stats_.bytes_to_host;
    collect(unit, store);
    transfer::Issued issued;
    store.waited.clear(store.staged.waits.size());
    Status status =
        transfer::issue(device_, lane_.stream(), store.straight, store.staged.waits, &store.waited, &issued);
    stats_.bytes_to_host += issued.bytes;
    for (const auto& extent : store.staged.extents) stats_.bytes_to_host += status.ok() ? extent.bytes : 0;
    // Also after a failure, because copies that were queued before it still read the unit and write its source.
    changes_.reads(unit, false);
    if (Status recorded = lane_.record(unit.written_back()); !recorded.ok()) {
        if (status.ok()) status = recorded;
        // Without an event nobody could wait for the copies later.
        (void)once_more([&] { return lane_.synchronize(); }).ok();
    }
    if (!status.ok()) return status.within(registry_.name_of(unit) + " cannot be written back");
    stats_.write_backs++;
    link_.note_use(device_.now_ns());
    link_.weights_queued(stats_.bytes_to_host - bytes_before, 0);
    if (telemetry::trace_on())
        telemetry::trace_named([&] {
            telemetry::trace_write_back(runtime_name_.c_str(), registry_.name_of(unit).c_str(), device_.now_ns(),
                                        stats_.bytes_to_host - bytes_before);
        });
    return store.staged.extents.empty() ? Status() : submit(unit, store);
}

// Adds commands for the parts that go straight to their source, and extents for the workers for the rest. All of them
// come after the waits.
void WriteBack::collect(Unit& unit, Store& store) {
    using transfer::Command;
    const uint64_t own_end = unit.own.size() * registry_.page_bytes();
    store.straight.push_back({.waits = {0, static_cast<uint32_t>(store.staged.waits.size())}});
    for (Block& block : registry_.blocks_of(unit)) {
        const uint64_t from = block.written_own() ? 0 : own_end, to = block.written_ring() ? unit.bytes : own_end;
        if (!block.id || !block.written() || from >= to) continue;
        registry_.note_news(block);
        for (const transfer::Segment& read : block.detail->segments) {
            const transfer::Segment& segment = written_segment(*block.detail, read);
            const uint64_t begin = std::max(from, segment.offset), end = std::min(to, segment.end());
            if (begin >= end) continue;
            char* const host = static_cast<char*>(segment.source.pointer) + (begin - segment.offset);
            const uint64_t address = unit.address + begin, bytes = end - begin;
            if (segment.straight())
                store.straight.push_back(
                    {Command::Kind::to_host, false, address, reinterpret_cast<uint64_t>(host), bytes, {}});
            else
                store.staged.extents.push_back({host, address, bytes});
        }
    }
    if (!unit.load_queued()) registry_.read_news(unit);
}

Status WriteBack::submit(Unit& unit, Store& store) {
    store.staged.stream = lane_.stream();
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
    self.stores_.give(store);
    self.write_again(unit, status);
    self.changed_.notify_all();
}

// A write-back of the unit has ended, and its bytes may be dirty again. After a failure, that waits for the next need.
void WriteBack::write_again(Unit& unit, Status failure) {
    if (failure.ok() && unit.dirty() && unit.held == 0) failure = no_throw([&] { return begin(unit, Part::ring); });
    if (!failure.ok()) failure_ = no_throw([&] { return failure.within("a write-back failed"); });
}

Status WriteBack::wait(Unit& unit, std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [&] { return unit.writing() == Writing::none; });
    return take_failure();
}

bool WriteBack::is_flushed(Unit& unit, const Block& block) {
    return !block.dirty() && !block.written() && changes_.has_landed(unit);
}

Status WriteBack::flush(std::span<const uint32_t> blocks, std::unique_lock<std::mutex>& lock) {
    const auto each = [&](auto&& work) -> Status {
        for (const uint32_t index : blocks)
            if (Block& block = registry_.block(index); block.id) SH_TRY(work(block, registry_.unit(block.unit)));
        return Status();
    };
    const auto is_free = [&](Block& block, Unit&) {
        if (!block.dirty() || !block.held) return Status();
        return Status(SH_ERROR_INVALID_STATE,
                      registry_.name_of(block) +
                          " cannot be written back: it is dirty, and a view of it is held. Release the view first");
    };
    SH_TRY(each(is_free));
    // All write-backs are begun before the first wait.
    SH_TRY(each([&](Block& block, Unit& unit) { return block.dirty() ? begin(unit, Part::all) : Status(); }));
    return each([&](Block& block, Unit& unit) -> Status {
        const sh_block id = block.id;
        while (block.id == id && !is_flushed(unit, block)) {  // checked again after each wait
            if (unit.writing() != Writing::none) {
                SH_TRY(wait(unit, lock));
            } else if (block.dirty()) {
                SH_TRY(is_free(block, unit));
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

Status WriteBack::order_after(Unit& unit, sh_stream stream, bool may_wait, std::unique_lock<std::mutex>& lock,
                              bool* out_waited) {
    while (unit.hindered_by(kBeingRead)) {  // checked again after each wait
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
            SH_TRY(unlocked(lock, [&] { return device_.event_synchronize(read); }));  // other calls go on meanwhile
            continue;
        }
        changes_.followed(unit);
    }
    return Status();
}

void WriteBack::drain(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [&] { return pending_ == 0; });
}

Status WriteBack::finish(std::unique_lock<std::mutex>& lock) {
    drain(lock);
    return lane_.synchronize();
}

}  // namespace stagehand::core
