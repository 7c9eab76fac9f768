#include "core/movement/loader.h"

#include <algorithm>
#include <utility>

#include "base/no_throw.h"
#include "base/unlocked.h"
#include "core/movement/missing.h"
#include "core/movement/on_load.h"
#include "telemetry/trace.h"

namespace stagehand::core {

Loader::Loader(Device& device, transfer::Carrier& carrier, transfer::Unpacker& unpacker, Registry& registry, Ring& ring,
               Contents& contents, Changes& changes, EventPool& events, std::mutex& mutex,
               std::condition_variable& changed, sh_runtime_stats& stats, const std::string& runtime_name)
    : device_(device.backend()),
      carrier_(carrier),
      unpacker_(unpacker),
      staging_(device.staging()),
      link_(device.links().to_device),
      registry_(registry),
      ring_(ring),
      contents_(contents),
      changes_(changes),
      events_(events),
      mutex_(mutex),
      changed_(changed),
      stats_(stats),
      runtime_name_(runtime_name),
      routes_(device.backend(), registry, carrier),
      meter_(device.backend()) {
    routes_.set_unpacker(&unpacker);
}

Loader::~Loader() {
    for (const auto& load : loads_.all()) events_.give(&load->done);
}

Load& Loader::take() {
    Load& load = loads_.take([this](Load& made) { made.loader = this; });
    load.clear();
    return load;
}

void Loader::give(Unit& unit) {
    Load& load = *unit.load();
    contents_.end_load(unit);
    loads_.give(load);
    if (load.issued && telemetry::trace_on()) [[unlikely]]
        telemetry::trace_named([&] {
            telemetry::trace_load(runtime_name_.c_str(), registry_.name_of(unit).c_str(), load.begun_ns,
                                  device_.now_ns(), load.copied.bytes, load.copied.commands);
        });
}

void Loader::find_missing(Unit& unit, Load& load, uint32_t ring_pages) {
    const uint32_t own = static_cast<uint32_t>(unit.own.size());
    load.own_from = unit.whole ? 0 : unit.own_valid();
    if (load.own_from < own) add_range(unit, registry_.page_bytes(), load.own_from, own - load.own_from, &load);
    find_missing_streamed(
        unit, ring_pages, registry_.page_bytes(),
        [&](uint32_t k) -> const Ring::Page& { return ring_.page_of(unit, k); },
        [&](uint32_t fence) { return registry_.unit(fence).last_use(); }, &load);
}

Status Loader::begin(Unit& unit, uint64_t deadline_ns) { return begin_part(unit, deadline_ns, unit.ring_pages); }

Status Loader::begin_part(Unit& unit, uint64_t deadline_ns, uint32_t ring_pages) {
    if (unit.load_queued())
        return Status(SH_ERROR_INTERNAL, registry_.name_of(unit) + " is already being loaded by workers");
    registry_.read_news(unit);
    Load* taken = nullptr;
    Status status = no_throw([&] {
        taken = &take();
        taken->unit = registry_.index_of(unit);
        taken->begun_ns = device_.now_ns();
        find_missing(unit, *taken, ring_pages);
        return contents_.find_fences(unit, taken->own_from, taken->runs, &taken->waits, &taken->own_waits,
                                     &taken->run_waits);
    });
    if (!status.ok()) {
        if (taken) loads_.give(*taken);
        return status;
    }
    Load& load = *taken;
    if (unit.load()) give(unit);  // the earlier load was issued to the same stream, so their order is right
    load.after_all = contents_.writes_unseen(unit, load.own_from, load.runs);
    contents_.take(unit, load, load.runs);
    stats_.loads++;
    status = no_throw([&] { return issue(unit, load, deadline_ns); });
    if (status.ok()) tell_link(load, deadline_ns);
    if (!status.ok()) {
        fail(unit, load, status);
        give(unit);
    }
    return status;
}

// Without a deadline the weights are needed now.
void Loader::tell_link(Load& load, uint64_t deadline_ns) {
    const uint64_t bytes = load.copied.bytes + load.staged.link_bytes();
    load.link_mark = link_.weights_queued(bytes, deadline_ns > load.begun_ns ? deadline_ns - load.begun_ns : 0);
}

// Loads write side by side on different ways. One that was broken off may still write pages that are written again now.
Status Loader::begin_trip(Unit& unit, Load& load) {
    look();
    const sh_backend_event written = changes_.has_landed(unit) ? 0 : unit.written_back();
    SH_TRY(carrier_.begin(load.after_all || followed_ != broken_off_, written, &load.trip));
    followed_ = broken_off_;
    return Status();
}

void Loader::end_trip(Unit& unit, transfer::Trip trip, bool whole) {
    const transfer::Trip ended = carrier_.end(trip);
    look_back();
    if (!ended) return;
    stats_.helped_bytes = carrier_.bytes_beside();
    unit.trip = ended;
    if (carrier_.ask(ended) != transfer::Answer::wrong) return;
    lose(unit);
    if (whole) told_ = false;
}

void Loader::look() {
    carrier_.look();
    look_back();
}

void Loader::look_back() {
    if (std::exchange(times_wrong_, carrier_.times_wrong()) == carrier_.times_wrong()) return;
    for (Unit& unit : registry_.units()) {
        if (!unit.live || carrier_.ask(unit.trip) != transfer::Answer::wrong) continue;
        told_ = false;
        lose(unit);
    }
}

void Loader::lose(Unit& unit) {
    unit.trip = 0;
    contents_.spoil(unit);
    for (Block& block : registry_.blocks_of(unit)) {
        if (!block.id) continue;
        for (const transfer::Segment& segment : block.detail->segments)
            if (segment.kept) segment.kept->forget();
    }
}

Status Loader::take_failure() {
    if (std::exchange(told_, true)) return Status();
    return Status(SH_ERROR_BACKEND,
                  "a device that helps has failed: weights that it was bringing may have been wrong in this step "
                  "and earlier ones, and are loaded again");
}

Status Loader::bring_kept(Unit& unit) {
    transfer::Trip trip = 0;
    SH_TRY(carrier_.begin(false, 0, &trip));
    transfer::Issued issued;
    Status status;
    for (Block& block : registry_.blocks_of(unit)) {
        if (!block.id) continue;
        for (const transfer::Segment& segment : block.detail->segments)
            if (status.ok() && segment.kept && segment.route == transfer::Route::packed)
                status = unpacker_.bring_kept(stream(), segment, &issued);
    }
    end_trip(unit, trip, false);
    stats_.load_pieces += issued.commands;
    stats_.bytes_to_device += issued.bytes;
    return status;
}

Status Loader::issue(Unit& unit, Load& load, uint64_t deadline_ns) {
    SH_TRY(begin_trip(unit, load));
    link_.note_use(load.begun_ns);
    routes_.begin(&load);
    const uint64_t page = registry_.page_bytes();
    const uint64_t own_bytes = unit.own.size() * page;
    if (load.own_from < unit.own.size())
        routes_.add(unit, load.own_from * page, std::min(own_bytes, unit.bytes), load.own_waits);
    for (size_t i = 0; i < load.runs.size(); i++) {
        const uint64_t begin = own_bytes + load.runs[i].first * page;
        routes_.add(unit, begin, std::min(unit.bytes, begin + load.runs[i].pages * page), load.run_waits[i]);
    }
    // The CPU gathers small pieces, and no event delays the CPU. So this is not done while the device may still write
    // their source.
    if (!device_.has(SH_BACKEND_CONTENTLESS) && changes_.has_landed(unit)) routes_.leave_small();
    // Workers issue to the lane, too, and what they issue must not lie between the events of a copy. Packed tensors
    // share the link with a copy that is timed.
    SH_TRY(routes_.issue_straight(stream(), queued_ || routes_.unpacks() ? nullptr : &meter_));
    if (load.staged.empty()) return complete(unit, load);
    routes_.cut_staged(staging_.piece_bytes(), queued_ ? 1 : std::max(1u, staging_.threads()));
    load.staged.waits = load.waits;
    load.staged.stream = stream();
    load.staged.deadline_ns = deadline_ns;
    load.staged.context = &load;
    load.staged.finished = staged_finished;
    load.staged.carrier = &carrier_;
    load.staged.trip = load.trip;
    contents_.queue(unit, true);
    queued_++;
    Status status = no_throw([&] { return staging_.submit(load.staged); });
    if (status.ok()) return status;
    contents_.queue(unit, false);
    queued_--;
    return status;
}

// Only of loads that workers have read whole. Virtual time does not pass while they read.
void Loader::note_delivery(Unit& unit, const Load& load) {
    const uint64_t all = load.staged.contents_bytes();
    const bool whole = load.staged.issued_bytes > 0 && load.staged.issued_bytes == load.copied.bytes;
    if (!load.staged.read_ns || !whole || device_.has(SH_BACKEND_VIRTUAL_TIME)) return;
    unit.delivery.saw(static_cast<double>(load.staged.read_ns) / static_cast<double>(all));
}

// All copies have been issued. Calls the engine's callback, then records the event that uses wait for.
Status Loader::complete(Unit& unit, Load& load) {
    load.copied.commands += load.staged.issued_pieces;
    load.copied.bytes += load.staged.issued_bytes;
    stats_.load_pieces += load.copied.commands;
    stats_.bytes_to_device += load.copied.bytes;
    note_delivery(unit, load);
    if (has_on_load(registry_, unit)) SH_TRY(carrier_.join());
    SH_TRY(LoadRoutes::issue_rest(device_, stream(), &load));
    SH_TRY(call_on_load(registry_, unit, load.ranges, stream()));
    if (!load.done) SH_TRY(events_.take(&load.done));
    SH_TRY(carrier_.finish(load.done));
    load.issued = true;
    contents_.issued(unit, load.runs);
    end_trip(unit, load.trip, true);
    return Status();
}

void Loader::fail(Unit& unit, Load& load, Status status) {
    contents_.fail(unit, load.own_from, load.runs);
    end_trip(unit, load.trip, false);  // chunks that stay are there, although the load has failed
    note_failure(load, std::move(status));
}

// The device does not say whether an issued load has ended. Others may have views of the unit, or may have changed it
// since. So its pages stay its own until nobody holds it and its changes are written, and are loaded again after that.
void Loader::lose_sight(Unit& unit, Load& load, Status status) {
    contents_.spoil(unit);
    note_failure(load, std::move(status));
}

void Loader::note_failure(Load& load, Status status) {
    broken_off_++;
    if (status.code() == SH_ERROR_CANCELLED)
        stats_.cancelled_loads++;
    else
        stats_.failed_loads++;
    last_failure_ = load.failure = std::move(status);
}

void Loader::staged_finished(void* context, transfer::StagedLoad&, const Status& result) {
    Load& load = *static_cast<Load*>(context);
    Loader& loader = *load.loader;
    std::lock_guard lock(loader.mutex_);
    Unit& unit = loader.registry_.unit(load.unit);
    Status status = no_throw([&] {
        if (result.ok()) return loader.complete(unit, load);
        if (result.code() == SH_ERROR_CANCELLED) return result;
        const bool alone = unit.block_count == 1;  // else the block whose source failed is not known here
        return result.within(loader.registry_.name_of(unit) + (alone ? "" : " or a block that shares its pages"));
    });
    loader.contents_.queue(unit, false);
    loader.queued_--;
    if (!status.ok()) loader.fail(unit, load, std::move(status));
    loader.changed_.notify_all();
}

Status Loader::wait_issued(Unit& unit, std::unique_lock<std::mutex>& lock, uint64_t deadline_ns) {
    if (!unit.load()) return Status();
    if (unit.load_queued()) {
        staging_.hurry(unit.load()->staged, deadline_ns);
        changed_.wait(lock, [&] { return !unit.load_queued(); });
    }
    if (!unit.load() || unit.load()->issued) return Status();
    Status failure = unit.load()->failure;
    give(unit);
    return failure;
}

Status Loader::wait_done(Unit& unit, std::unique_lock<std::mutex>& lock) {
    const Load* const load = unit.load();
    if (!load || !load->issued) return Status();
    const uint64_t serial = unit.serial();
    const sh_backend_event done = load->done;
    // Other calls go on meanwhile. At worst the event is recorded again, and this call waits longer.
    Status status = unlocked(lock, [&] { return device_.event_synchronize(done); });
    if (unit.load() != load || unit.serial() != serial || !load->issued) return status;
    if (!status.ok())
        lose_sight(unit, *unit.load(), status);
    else
        contents_.seen(unit);
    give(unit);
    return status;
}

bool Loader::is_quiet(Unit& unit) {
    Status failure;
    if (unit.load_queued() || (unit.load() && unit.load()->issued && !settle(unit, &failure))) return false;
    return known_over_ == broken_off_;  // a load whose end is not known counts as broken off
}

Status Loader::wait_quiet(Unit& unit, std::unique_lock<std::mutex>& lock) {
    if (known_over_ < broken_off_) {
        const uint64_t now = broken_off_;
        SH_TRY(unlocked(lock, [&] { return synchronize(); }));
        known_over_ = std::max(known_over_, now);
    }
    return wait_done(unit, lock);
}

Status Loader::order_before(Unit& unit, sh_stream stream) {
    link_.arrived(unit.load()->link_mark);
    SH_TRY(device_.stream_wait_event(stream, unit.load()->done));
    contents_.waits(unit, stream);
    return Status();
}

bool Loader::settle(Unit& unit, Status* failure) {
    Load* const load = unit.load();
    if (!load) return true;
    if (!load->issued) return false;
    uint32_t done = 0;
    if (Status status = device_.event_query(load->done, &done); !status.ok()) {
        *failure = status;
        lose_sight(unit, *load, status);
        give(unit);
        return true;
    }
    if (!done) return false;
    contents_.seen(unit);
    give(unit);
    return true;
}

void Loader::leave(Unit& unit) {
    Status failure;  // of a load whose bytes nobody has
    if (!unit.load() || settle(unit, &failure)) return;
    if (unit.load()->issued) broken_off_++;
    give(unit);
}

void Loader::settle_all() {
    for (const auto& load : loads_.all()) {
        Unit& unit = registry_.unit(load->unit);
        Status failure;  // the next acquire finds the bytes missing and loads them again
        if (unit.load() == load.get()) settle(unit, &failure);
    }
}

void Loader::cancel(Unit& unit, std::unique_lock<std::mutex>& lock) {
    if (!unit.load_queued()) return;
    if (staging_.cancel(unit.load()->staged)) {
        contents_.queue(unit, false);
        queued_--;
        fail(unit, *unit.load(), Status(SH_ERROR_CANCELLED));
        give(unit);
        changed_.notify_all();
        return;
    }
    changed_.wait(lock, [&] { return !unit.load_queued(); });
    if (unit.load() && !unit.load_queued() && !unit.load()->issued) give(unit);
}

void Loader::drain(std::unique_lock<std::mutex>& lock) {
    while (queued_)
        for (uint32_t i = 0; i < registry_.units().size(); i++) cancel(registry_.unit(i), lock);
}

void Loader::note_over() {
    known_over_ = broken_off_;
    registry_.close_spent();
}

Status Loader::synchronize() {
    SH_TRY(routes_.synchronize_unpacker());
    return carrier_.synchronize();
}

}  // namespace stagehand::core
