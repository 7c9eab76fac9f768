#include "transfer/carrier/helped_carrier.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/once_more.h"

namespace stagehand::transfer {
namespace {

// Smaller parts are not worth the commands of a relay.
uint64_t least_part() { return Carrier::least_bytes() / 2; }
uint64_t part_grain() { return Carrier::least_bytes() / 32; }
// More commands, each for a small part of the bytes, are not worth those of a relay.
constexpr size_t kMostCommands = 4;

const void* host_memory(const Command& command) { return reinterpret_cast<const void*>(command.other); }

}  // namespace

Status HelpedCarrier::add(Lanes& lanes, std::unique_ptr<Relay> relay, std::string name, std::function<bool()> is_idle,
                          size_t* out) {
    if (!joint_.is_open()) SH_TRY(lanes.lend(Direction::to_device, &joint_));
    log_.reserve(ways_.size() + 1);
    for (sh_backend_event* const event : {&begun_, &tail_, &passed_})
        if (!*event) SH_TRY(device_.event_create(false, event));
    std::lock_guard lock(mutex_);
    given_ns_.resize(ways_.size() + 2);
    Way& way = ways_.emplace_back();
    way.relay = std::move(relay);
    way.name = std::move(name);
    way.is_idle = std::move(is_idle);
    *out = ways_.size() - 1;
    return Status();
}

void HelpedCarrier::remove_relays() noexcept {
    std::lock_guard lock(mutex_);
    ways_.clear();
    for (sh_backend_event* const event : {&begun_, &tail_, &passed_})
        if (const sh_backend_event gone = std::exchange(*event, 0))
            (void)once_more([&] { return device_.event_destroy(gone); }).ok();
    joint_ = Lane();
}

HelpedCarrier::State HelpedCarrier::state(size_t way) const {
    std::lock_guard lock(mutex_);
    return {ways_[way].relay->is_open(), ways_[way].failed, ways_[way].relay->speed()};
}

Status HelpedCarrier::open_relay(size_t way, Lanes& lanes, Lanes& helper_lanes, uint64_t address, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    return ways_[way].relay->open(lanes, helper_lanes, address, bytes);
}

Status HelpedCarrier::close_relay(size_t way, bool* out_over) {
    std::lock_guard lock(mutex_);
    Way& closed = ways_[way];
    Status status = closed.relay->close(out_over);
    if (closed.relay->is_distrusted()) closed.failed = closed.distrusted = true;
    return status;
}

void HelpedCarrier::set_speed(size_t way, double bytes_per_ns, uint64_t lone_copy_ns) {
    std::lock_guard lock(mutex_);
    ways_[way].relay->set_speed(bytes_per_ns, lone_copy_ns);
}

void HelpedCarrier::fail(size_t way) {
    std::lock_guard lock(mutex_);
    ways_[way].failed = true;
}

void HelpedCarrier::set_own_speed(double bytes_per_ns, uint64_t lone_copy_ns) {
    std::lock_guard lock(mutex_);
    if (!own_speed_.known()) own_speed_.start(bytes_per_ns, lone_copy_ns, least_part());
}

Status HelpedCarrier::join_all(Relay::Follower follower, sh_stream stream) {
    Status status;
    for (Way& way : ways_) {
        if (!way.relay->is_open()) continue;
        if (Status joined = way.relay->join(follower, stream); status.ok()) status = std::move(joined);
    }
    return status;
}

Status HelpedCarrier::join() {
    if (ways_.empty()) return Status();
    std::lock_guard lock(mutex_);
    return join_all(Relay::Follower::lane, stream());
}

HelpedCarrier::Journey* HelpedCarrier::find(Trip trip) {
    const auto found = std::ranges::find(journeys_, trip, &Journey::trip);
    return found == journeys_.end() ? nullptr : &*found;
}

Status HelpedCarrier::begin(bool after_all, sh_backend_event written, Trip* out) {
    *out = 0;
    if (ways_.empty()) return Status();
    std::lock_guard lock(mutex_);
    for (Way& way : ways_) way.wanted = way.is_idle();
    if (after_all) SH_TRY(follow_all());
    Journey* journey = find(0);
    if (!journey) journey = &journeys_.emplace_back();
    journey->trip = *out = log_.begin();
    journey->prepared = false;
    journey->written = written;
    journey->relayed = relayed_;
    return Status();
}

Status HelpedCarrier::follow_all() {
    SH_TRY(join_all(Relay::Follower::lane, stream()));
    SH_TRY(device_.event_record(begun_, stream()));
    for (Way& way : ways_)
        if (way.relay->is_open()) SH_TRY(way.relay->follow(begun_));
    return Status();
}

void HelpedCarrier::leave_out(Way& way, const Status& why) {
    if (!std::exchange(way.failed, true))
        log_line(SH_LOG_WARNING, "%s brings nothing any more: %s", way.name.c_str(), why.text());
}

Status HelpedCarrier::finish(sh_backend_event done) {
    if (ways_.empty()) return own_->finish(done);
    std::lock_guard lock(mutex_);
    return record_end(done);
}

// Relays are opened and closed while no trip is under way, so that the events of trips stay in order.
Status HelpedCarrier::record_end(sh_backend_event done) {
    if (std::ranges::none_of(ways_, [](const Way& way) { return way.relay->is_open(); })) return own_->finish(done);
    SH_TRY(own_->finish(tail_));
    SH_TRY(device_.stream_wait_event(joint_.stream(), tail_));
    SH_TRY(join_all(Relay::Follower::joint, joint_.stream()));
    return device_.event_record(done, joint_.stream());
}

// The look after this one tells of all trips that have ended.
Status HelpedCarrier::synchronize() {
    if (!ways_.empty()) {
        std::lock_guard lock(mutex_);
        if (!log_.all_known()) mark();
    }
    SH_TRY(settle());
    SH_TRY(own_->synchronize());
    return joint_.is_open() ? device_.stream_synchronize(joint_.stream()) : Status();
}

// Others may issue copies meanwhile, so the lock is not held while the host waits for what may take long.
Status HelpedCarrier::settle() {
    std::unique_lock lock(mutex_);
    Status status;
    for (size_t i = 0; i < ways_.size(); i++) {
        Relay& relay = *ways_[i].relay;
        if (!relay.is_open() || relay.idle()) continue;
        Status settled;
        if (!relay.settled()) {
            settled = relay.settle();
        } else {
            const uint64_t brought = relay.brought();
            const Relay::Streams streams = relay.streams();
            lock.unlock();
            settled = relay.wait_for(streams);
            lock.lock();
            if (settled.ok()) relay.settle_after(brought);
        }
        if (status.ok()) status = std::move(settled);
    }
    return status;
}

// --- Whether the bytes are right ---

// Other trips under way may be those that had a relayed part. That errs on the safe side.
Trip HelpedCarrier::end(Trip trip) {
    if (!trip) return 0;
    std::lock_guard lock(mutex_);
    note_failures();
    Journey& journey = *find(trip);
    journey.trip = 0;
    if (log_.ask(trip) != Answer::wrong && relayed_ == journey.relayed) return 0;
    log_.doubt(trip);
    return trip;
}

Answer HelpedCarrier::ask(Trip trip) const {
    std::lock_guard lock(mutex_);
    return log_.ask(trip);
}

void HelpedCarrier::look() {
    if (ways_.empty()) return;
    std::lock_guard lock(mutex_);
    note_failures();
    if (log_.all_known()) return;
    uint32_t passed = 0;
    if (log_.is_marked() && !device_.event_query(passed_, &passed).ok()) passed = 0;
    ask_helpers();
    note_failures();
    if (passed) log_.passed();
    if (!log_.is_marked() && !log_.all_known()) mark();
}

void HelpedCarrier::mark() {
    Trip last = log_.last();
    for (const Journey& journey : journeys_)
        if (journey.trip) last = std::min(last, journey.trip - 1);
    log_.marked(record_end(passed_).ok(), last);
}

// A helper that has failed is not used any more. What it copied since it was asked last may be wrong.
void HelpedCarrier::ask_helpers() {
    for (Way& way : ways_) {
        // One that was left out because of a call may have failed before, in a copy.
        if (way.distrusted || !way.relay->is_open()) continue;
        const bool at_work = way.relay->is_at_work();
        const Status checked = way.relay->check();
        if (checked.ok()) continue;
        if (at_work || way.relay->is_distrusted())
            way.failed = way.distrusted = true;
        else
            leave_out(way, checked);  // all that it has copied is right
    }
}

void HelpedCarrier::note_failures() {
    const auto distrusted = static_cast<size_t>(std::ranges::count_if(ways_, &Way::distrusted));
    if (distrusted == std::exchange(distrusted_, distrusted)) return;
    log_.fail();
    times_wrong_.store(log_.times_wrong(), std::memory_order_relaxed);
}

HelpedCarrier::Journey& HelpedCarrier::prepare(Trip trip, size_t events) {
    Journey& journey = trip ? *find(trip) : loose_;
    if (trip && std::exchange(journey.prepared, true)) return journey;
    journey.ways.resize(ways_.size());
    for (Journey::Way& way : journey.ways) {
        way.waited.clear(events);
        way.copies_after = false;
    }
    return journey;
}

Status HelpedCarrier::carry(Trip trip, sh_stream* stream, const Cargo& cargo) {
    if (ways_.empty()) return own_->carry(trip, stream, cargo);
    std::lock_guard lock(mutex_);
    return cargo.whole ? carry_whole(trip, stream, cargo) : carry_divided(trip, *stream, cargo);
}

Status HelpedCarrier::carry_own(sh_stream stream, std::span<const Command> commands, Cargo cargo) {
    cargo.commands = commands;
    return own_->carry(0, &stream, cargo);
}

Status HelpedCarrier::carry_divided(Trip trip, sh_stream stream, Cargo cargo) {
    if (!divide(cargo.commands)) return carry_own(stream, cargo.commands, cargo);
    Journey& journey = prepare(trip, cargo.events.size());
    // Without a meter, copies must not be timed.
    if (cargo.meter && !cargo.meter->running()) cargo.meter = &own_speed_.meter();
    SH_TRY(carry_own(stream, own_part_, cargo));
    own_speed_.copied();
    own_speed_.look();
    left_.clear();
    for (const Part& part : parts_) {
        bool brought = false;
        SH_TRY(bring(part.way, part.command, cargo, journey, &brought));
        if (!brought) left_.push_back(part.command);
    }
    return carry_own(stream, left_, cargo);
}

// Divides the commands among the own link and the relays. Returns false if the own link is to bring everything.
bool HelpedCarrier::divide(std::span<const Command> commands) {
    if (!own_speed_.known() || !std::ranges::any_of(ways_, &Way::usable)) return false;
    links_.assign(1 + ways_.size(), {});
    own_part_.clear();
    parts_.clear();
    bool cut = false;  // the command before was divided
    for (const Command& command : commands) {
        own_part_.push_back(command);
        own_part_.back().joins = command.joins && !cut;
        cut = carries(command) && command.bytes >= least_bytes();
        if (cut) divide(own_part_.back());
    }
    return !parts_.empty();
}

// Leaves the own part.
void HelpedCarrier::divide(Command& command) {
    const Command whole = command;
    links_[0].bytes_per_ns = own_speed_.bytes_per_ns();
    for (size_t i = 0; i < ways_.size(); i++) {
        const bool takes = ways_[i].usable() && ways_[i].relay->takes(host_memory(whole), whole.bytes);
        links_[i + 1].bytes_per_ns = takes ? ways_[i].relay->speed() : 0;
    }
    deal(whole.bytes, part_grain(), least_part(), 0, links_);
    uint64_t done = command.bytes = links_[0].bytes;
    for (size_t i = 0; i < ways_.size(); i++) {
        const uint64_t bytes = links_[i + 1].bytes;
        if (bytes)
            parts_.push_back({i, {whole.kind, false, whole.device + done, whole.other + done, bytes, whole.waits}});
        done += bytes;
    }
}

// A relay that fails is left out from then on, and the own link brings its part. An error is returned only if what the
// relay has queued cannot be waited for.
Status HelpedCarrier::bring(size_t way, const Command& command, const Cargo& cargo, Journey& journey,
                            bool* out_brought) {
    Way& by = ways_[way];
    if (by.failed || by.relay->is_distrusted()) return Status();
    Journey::Way& of = journey.ways[way];
    Status status;
    if (journey.written && !of.copies_after) {
        status = by.relay->copy_after(journey.written);
        if (!status.ok()) SH_TRY(by.relay->settle());
    }
    of.copies_after = true;
    if (status.ok()) status = by.relay->bring(command, cargo.events, &of.waited);
    if (status.ok()) {
        relayed_ += command.bytes;
        cargo.issued->bytes += command.bytes;
        cargo.issued->commands++;
        *out_brought = true;
        return status;
    }
    // What a lost device has brought before cannot be trusted.
    if (!by.relay->settled() || status.code() == SH_ERROR_DEVICE_LOST || by.relay->is_distrusted()) {
        by.failed = by.distrusted = true;
        return Status(SH_ERROR_BACKEND, by.name + " failed: " + status.text());
    }
    leave_out(by, status);
    return Status();
}

// One way brings everything.
Status HelpedCarrier::carry_whole(Trip trip, sh_stream* stream, const Cargo& cargo) {
    uint64_t bytes = 0;
    for (const Command& command : cargo.commands) bytes += command.bytes;
    Journey& journey = prepare(trip, cargo.events.size());
    even_out();
    const size_t chosen = choose(cargo.commands, bytes);
    const double speed = chosen ? ways_[chosen - 1].relay->speed() : own_speed_.bytes_per_ns();
    if (speed > 0) given_ns_[chosen] += static_cast<double>(bytes) / speed;
    if (!chosen) return carry_own(*stream, cargo.commands, cargo);
    left_.clear();
    for (const Command& command : cargo.commands) {
        bool brought = false;
        SH_TRY(bring(chosen - 1, command, cargo, journey, &brought));
        if (!brought) left_.push_back(command);
    }
    if (left_.empty()) {
        *stream = ways_[chosen - 1].relay->stream();
        return Status();
    }
    // What the relay has brought has ended, because its failure was waited for.
    for (Command& command : left_) command.joins = false;
    return carry_own(*stream, left_, cargo);
}

// A way that was not used for a while does not catch up on all that the others were given meanwhile.
void HelpedCarrier::even_out() {
    constexpr double kCatchUpNs = 2'000'000;
    const double most = *std::ranges::max_element(given_ns_);
    for (double& given : given_ns_) given = std::max(given - most, -kCatchUpNs);
}

// The way that would have carried the bytes first, 0 for the own link.
size_t HelpedCarrier::choose(std::span<const Command> commands, uint64_t bytes) const {
    if (bytes < least_bytes() || commands.size() > kMostCommands || !own_speed_.known()) return 0;
    const auto end_of = [&](size_t way, double speed) { return given_ns_[way] + static_cast<double>(bytes) / speed; };
    size_t chosen = 0;
    double first = end_of(0, own_speed_.bytes_per_ns());
    for (size_t i = 0; i < ways_.size(); i++) {
        if (!ways_[i].usable() || ways_[i].relay->speed() <= 0) continue;
        const double end = end_of(i + 1, ways_[i].relay->speed());
        if (end >= first || !std::ranges::all_of(commands, [&](const Command& command) {
                return carries(command) && ways_[i].relay->takes(host_memory(command), command.bytes);
            }))
            continue;
        first = end;
        chosen = i + 1;
    }
    return chosen;
}

}  // namespace stagehand::transfer
