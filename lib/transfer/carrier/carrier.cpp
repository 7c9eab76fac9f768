#include "transfer/carrier/carrier.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/log.h"
#include "base/once_more.h"

namespace stagehand::transfer {
namespace {

// Smaller copies, and smaller parts, are not worth the commands of a relay.
std::atomic<uint64_t> least = 2 << 20;
uint64_t least_part() { return least / 2; }
uint64_t part_grain() { return least / 32; }
// More commands, each for a small part of the bytes, are not worth those of a relay.
constexpr size_t kMostCommands = 4;

}  // namespace

uint64_t Carrier::least_bytes() { return least; }

void Carrier::set_least_bytes(uint64_t bytes) { least = bytes; }

Status Carrier::add(Lanes& lanes, std::unique_ptr<Relay> relay, std::string name, std::function<bool()> is_idle,
                    size_t* out) {
    if (!joint_.is_open()) SH_TRY(lanes.lend(Direction::to_device, &joint_));
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

void Carrier::remove_relays() noexcept {
    std::lock_guard lock(mutex_);
    ways_.clear();
    for (sh_backend_event* const event : {&begun_, &tail_, &passed_})
        if (const sh_backend_event gone = std::exchange(*event, 0))
            (void)once_more([&] { return device_.event_destroy(gone); }).ok();
    joint_ = Lane();
}

bool Carrier::has_failed(size_t way) const {
    std::lock_guard lock(mutex_);
    return ways_[way].failed;
}

uint64_t Carrier::all_relayed() const {
    uint64_t bytes = 0;
    for (const Way& way : ways_) bytes += way.bytes;
    return bytes;
}

uint64_t Carrier::relayed_bytes() const {
    std::lock_guard lock(mutex_);
    return all_relayed();
}

double Carrier::speed(size_t way) const {
    std::lock_guard lock(mutex_);
    return ways_[way].relay->speed();
}

Status Carrier::open_relay(size_t way, Lanes& lanes, Lanes& helper_lanes, uint64_t address, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    return ways_[way].relay->open(lanes, helper_lanes, address, bytes);
}

Status Carrier::close_relay(size_t way, bool* out_over) {
    std::lock_guard lock(mutex_);
    Way& closed = ways_[way];
    Status status = closed.relay->close(out_over);
    if (closed.relay->is_distrusted()) closed.failed = closed.distrusted = true;
    return status;
}

bool Carrier::is_open(size_t way) const {
    std::lock_guard lock(mutex_);
    return ways_[way].relay->is_open();
}

void Carrier::set_speed(size_t way, double bytes_per_ns, uint64_t lone_copy_ns) {
    std::lock_guard lock(mutex_);
    ways_[way].relay->set_speed(bytes_per_ns, lone_copy_ns);
}

void Carrier::fail(size_t way) {
    std::lock_guard lock(mutex_);
    ways_[way].failed = true;
}

void Carrier::set_own_speed(double bytes_per_ns, uint64_t lone_copy_ns) {
    std::lock_guard lock(mutex_);
    if (!own_speed_.known()) own_speed_.start(bytes_per_ns, lone_copy_ns, least_part());
}

Status Carrier::join_all(Relay::Follower follower, sh_stream stream) {
    Status status;
    for (Way& way : ways_) {
        if (!way.relay->is_open()) continue;
        if (Status joined = way.relay->join(follower, stream); status.ok()) status = std::move(joined);
    }
    return status;
}

Status Carrier::join() {
    if (ways_.empty()) return Status();
    std::lock_guard lock(mutex_);
    return join_all(Relay::Follower::lane, lane_.stream());
}

Status Carrier::begin(bool after_all, Trip* out) {
    if (ways_.empty()) return Status();
    std::lock_guard lock(mutex_);
    out->relayed = all_relayed();
    out->wrong = log_.times_wrong();
    for (Way& way : ways_) way.wanted = way.is_idle();
    return after_all ? follow_all() : Status();
}

Status Carrier::follow_all() {
    SH_TRY(join_all(Relay::Follower::lane, lane_.stream()));
    SH_TRY(device_.event_record(begun_, lane_.stream()));
    for (Way& way : ways_)
        if (way.relay->is_open()) SH_TRY(way.relay->follow(begun_));
    return Status();
}

void Carrier::leave_out(Way& way, const Status& why) {
    if (!std::exchange(way.failed, true))
        log_line(SH_LOG_WARNING, "%s brings nothing any more: %s", way.name.c_str(), why.text());
}

Status Carrier::finish(sh_backend_event done) {
    if (ways_.empty()) return device_.event_record(done, lane_.stream());
    std::lock_guard lock(mutex_);
    return record_end(done);
}

// Relays are opened and closed while no trip is under way, so that the events of trips stay in order.
Status Carrier::record_end(sh_backend_event done) {
    if (std::ranges::none_of(ways_, [](const Way& way) { return way.relay->is_open(); }))
        return device_.event_record(done, lane_.stream());
    SH_TRY(device_.event_record(tail_, lane_.stream()));
    SH_TRY(device_.stream_wait_event(joint_.stream(), tail_));
    SH_TRY(join_all(Relay::Follower::joint, joint_.stream()));
    return device_.event_record(done, joint_.stream());
}

Status Carrier::synchronize() {
    SH_TRY(settle());
    SH_TRY(device_.stream_synchronize(lane_.stream()));
    return joint_.is_open() ? device_.stream_synchronize(joint_.stream()) : Status();
}

// Others may issue copies meanwhile, so the lock is not held while the host waits for what may take long.
Status Carrier::settle() {
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
Carrier::Ended Carrier::end(const Trip& trip) {
    if (ways_.empty()) return {};
    std::lock_guard lock(mutex_);
    note_failures();
    const bool wrong = log_.times_wrong() != trip.wrong;
    if (!wrong && all_relayed() == trip.relayed) return {};
    return {log_.add(), wrong};
}

void Carrier::look() {
    if (ways_.empty()) return;
    std::lock_guard lock(mutex_);
    note_failures();
    if (log_.all_known()) return;
    uint32_t passed = 0;
    if (log_.is_marked() && !device_.event_query(passed_, &passed).ok()) passed = 0;
    ask_helpers();
    note_failures();
    if (passed) log_.passed();
    if (!log_.is_marked() && !log_.all_known()) log_.marked(record_end(passed_).ok());
}

void Carrier::expect_all() {
    if (ways_.empty()) return;
    std::lock_guard lock(mutex_);
    log_.marked(record_end(passed_).ok());
}

// A helper that has failed is not used any more. What it copied since it was asked last may be wrong.
void Carrier::ask_helpers() {
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

void Carrier::note_failures() {
    const auto distrusted = static_cast<size_t>(std::ranges::count_if(ways_, &Way::distrusted));
    if (distrusted != std::exchange(distrusted_, distrusted)) log_.fail();
}

TripLog::Range Carrier::take_wrong() {
    if (ways_.empty()) return {};
    std::lock_guard lock(mutex_);
    return log_.take_wrong();
}

uint64_t Carrier::times_wrong() const {
    std::lock_guard lock(mutex_);
    return log_.times_wrong();
}

// Others issue copies meanwhile, and a helper that has failed may take long to answer.
Status Carrier::end_reads() {
    std::unique_lock lock(mutex_);
    for (size_t i = 0; i < ways_.size(); i++) {
        Relay& relay = *ways_[i].relay;
        if (!relay.may_read()) continue;
        lock.unlock();
        const Status ended = relay.end_reads();
        lock.lock();
        SH_TRY(ended);
    }
    return Status();
}

void Carrier::prepare(Trip* trip, size_t events) const {
    if (trip->ways.size() == ways_.size()) return;
    trip->ways.resize(ways_.size());
    for (Trip::Way& way : trip->ways) {
        way.waited.clear(events);
        way.copies_after = false;
    }
}

Status Carrier::issue(sh_stream stream, std::span<const Command> commands, std::span<const sh_backend_event> events,
                      Trip* trip, WaitSet* waited, Issued* out, CopyMeter* meter) {
    if (ways_.empty()) return transfer::issue(device_, stream, commands, events, waited, out, meter);
    std::lock_guard lock(mutex_);
    if (!divide(commands)) return transfer::issue(device_, stream, commands, events, waited, out, meter);
    prepare(trip, events.size());
    // Without a meter, copies must not be timed.
    if (meter && !meter->running()) meter = &own_speed_.meter();
    SH_TRY(transfer::issue(device_, stream, division_.own(), events, waited, out, meter));
    own_speed_.copied();
    own_speed_.look();
    left_.clear();
    for (const Division::Part& part : division_.parts()) {
        bool brought = false;
        SH_TRY(bring(part.way, part.command, events, trip, out, &brought));
        if (!brought) left_.push_back(part.command);
    }
    return transfer::issue(device_, stream, left_, events, waited, out, meter);
}

// Returns false if the own link is to bring everything.
bool Carrier::divide(std::span<const Command> commands) {
    if (!own_speed_.known() || !std::ranges::any_of(ways_, &Way::usable)) return false;
    division_.begin(ways_.size());
    for (const Command& command : commands) {
        if (!carries(command) || command.bytes < least) {
            division_.add(command);
            continue;
        }
        const auto* const from = reinterpret_cast<const void*>(command.other);
        std::vector<DealtLink>& links = division_.links();
        links[0].bytes_per_ns = own_speed_.bytes_per_ns();
        for (size_t i = 0; i < ways_.size(); i++) {
            const bool takes = ways_[i].usable() && ways_[i].relay->takes(from, command.bytes);
            links[i + 1].bytes_per_ns = takes ? ways_[i].relay->speed() : 0;
        }
        division_.divide(command, part_grain(), least_part());
    }
    return !division_.parts().empty();
}

// A relay that fails is left out from then on, and the own link brings its part. An error is returned only if what the
// relay has queued cannot be waited for.
Status Carrier::bring(size_t way, const Command& command, std::span<const sh_backend_event> events, Trip* trip,
                      Issued* out, bool* out_brought) {
    Way& by = ways_[way];
    if (by.failed || by.relay->is_distrusted()) return Status();
    Trip::Way& of = trip->ways[way];
    Status status;
    if (trip->written && !of.copies_after) {
        status = by.relay->copy_after(trip->written);
        if (!status.ok()) SH_TRY(by.relay->settle());
    }
    of.copies_after = true;
    if (status.ok()) status = by.relay->bring(command, events, &of.waited);
    if (status.ok()) {
        by.bytes += command.bytes;
        out->bytes += command.bytes;
        out->commands++;
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

Status Carrier::issue_whole(sh_stream stream, std::span<const Command> commands,
                            std::span<const sh_backend_event> events, Trip* trip, WaitSet* waited, Issued* out,
                            sh_stream* out_stream) {
    *out_stream = stream;
    if (ways_.empty()) return transfer::issue(device_, stream, commands, events, waited, out);
    std::lock_guard lock(mutex_);
    uint64_t bytes = 0;
    for (const Command& command : commands) bytes += command.bytes;
    prepare(trip, events.size());
    even_out();
    const size_t chosen = choose(commands, bytes);
    const double speed = chosen ? ways_[chosen - 1].relay->speed() : own_speed_.bytes_per_ns();
    if (speed > 0) given_ns_[chosen] += static_cast<double>(bytes) / speed;
    if (!chosen) return transfer::issue(device_, stream, commands, events, waited, out);
    left_.clear();
    for (const Command& command : commands) {
        bool brought = false;
        SH_TRY(bring(chosen - 1, command, events, trip, out, &brought));
        if (!brought) left_.push_back(command);
    }
    if (left_.empty()) {
        *out_stream = ways_[chosen - 1].relay->stream();
        return Status();
    }
    // What the relay has brought has ended, because its failure was waited for.
    for (Command& command : left_) command.joins = false;
    return transfer::issue(device_, stream, left_, events, waited, out);
}

// A way that was not used for a while does not catch up on all that the others were given meanwhile.
void Carrier::even_out() {
    constexpr double kCatchUpNs = 2'000'000;
    const double most = *std::ranges::max_element(given_ns_);
    for (double& given : given_ns_) given = std::max(given - most, -kCatchUpNs);
}

// The way that would have carried the bytes first, 0 for the own link.
size_t Carrier::choose(std::span<const Command> commands, uint64_t bytes) const {
    if (bytes < least || commands.size() > kMostCommands || !own_speed_.known()) return 0;
    const auto end_of = [&](size_t way, double speed) { return given_ns_[way] + static_cast<double>(bytes) / speed; };
    size_t chosen = 0;
    double first = end_of(0, own_speed_.bytes_per_ns());
    for (size_t i = 0; i < ways_.size(); i++) {
        if (!ways_[i].usable() || ways_[i].relay->speed() <= 0) continue;
        const double end = end_of(i + 1, ways_[i].relay->speed());
        if (end >= first || !std::ranges::all_of(commands, [&](const Command& command) {
                return carries(command) &&
                       ways_[i].relay->takes(reinterpret_cast<const void*>(command.other), command.bytes);
            }))
            continue;
        first = end;
        chosen = i + 1;
    }
    return chosen;
}

}  // namespace stagehand::transfer
