#include "transfer/bond/bond.h"

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

uint64_t Bond::least_bytes() { return least; }

void Bond::set_least_bytes(uint64_t bytes) { least = bytes; }

Bond::~Bond() {
    for (const sh_backend_event event : {begun_, tail_})
        if (event) (void)once_more([&] { return device_.event_destroy(event); }).ok();
}

Status Bond::open(Lanes& lanes) {
    if (!joint_.is_open()) SH_TRY(lanes.lend(Direction::to_device, &joint_));
    if (!begun_) SH_TRY(device_.event_create(false, &begun_));
    return tail_ ? Status() : device_.event_create(false, &tail_);
}

size_t Bond::add(std::unique_ptr<Relay> relay, std::string name) {
    std::lock_guard lock(mutex_);
    links_.resize(ways_.size() + 2);
    given_ns_.resize(ways_.size() + 2);
    ways_.emplace_back().relay = std::move(relay);
    ways_.back().name = std::move(name);
    return ways_.size() - 1;
}

void Bond::use(size_t way, bool use) {
    std::lock_guard lock(mutex_);
    ways_[way].wanted = use;
}

bool Bond::has_failed(size_t way) const {
    std::lock_guard lock(mutex_);
    return ways_[way].failed;
}

bool Bond::is_distrusted(size_t way) const {
    std::lock_guard lock(mutex_);
    return ways_[way].distrusted;
}

size_t Bond::distrusted() const {
    std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::ranges::count_if(ways_, &Way::distrusted));
}

uint64_t Bond::bytes(size_t way) const {
    std::lock_guard lock(mutex_);
    return ways_[way].bytes;
}

double Bond::speed(size_t way) const {
    std::lock_guard lock(mutex_);
    return ways_[way].relay->speed();
}

size_t Bond::ways() const {
    std::lock_guard lock(mutex_);
    return ways_.size();
}

Status Bond::open_way(size_t way, Lanes& lanes, Lanes& helper_lanes, uint64_t address, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    return ways_[way].relay->open(lanes, helper_lanes, address, bytes);
}

Status Bond::close_way(size_t way, bool* out_over) {
    std::lock_guard lock(mutex_);
    Way& closed = ways_[way];
    Status status = closed.relay->close(out_over);
    if (closed.relay->is_distrusted()) closed.failed = closed.distrusted = true;
    return status;
}

bool Bond::is_open(size_t way) const {
    std::lock_guard lock(mutex_);
    return ways_[way].relay->is_open();
}

void Bond::set_speed(size_t way, double bytes_per_ns, uint64_t lone_copy_ns) {
    std::lock_guard lock(mutex_);
    ways_[way].relay->set_speed(bytes_per_ns, lone_copy_ns);
}

void Bond::fail(size_t way) {
    std::lock_guard lock(mutex_);
    ways_[way].failed = true;
}

void Bond::set_own_speed(double bytes_per_ns, uint64_t lone_copy_ns) {
    std::lock_guard lock(mutex_);
    own_speed_.start(bytes_per_ns, lone_copy_ns, least_part());
}

double Bond::own_speed() const {
    std::lock_guard lock(mutex_);
    return own_speed_.bytes_per_ns();
}

Status Bond::join_all(Relay::Follower follower, sh_stream stream) {
    Status status;
    for (Way& way : ways_) {
        if (!way.relay->is_open()) continue;
        if (Status joined = way.relay->join(follower, stream); status.ok()) status = std::move(joined);
    }
    return status;
}

Status Bond::join(sh_stream lane) {
    std::lock_guard lock(mutex_);
    return join_all(Relay::Follower::lane, lane);
}

Status Bond::follow_all(sh_stream lane) {
    std::lock_guard lock(mutex_);
    SH_TRY(join_all(Relay::Follower::lane, lane));
    SH_TRY(device_.event_record(begun_, lane));
    for (Way& way : ways_)
        if (way.relay->is_open()) SH_TRY(way.relay->follow(begun_));
    return Status();
}

void Bond::leave_out(Way& way, const Status& why) {
    if (!std::exchange(way.failed, true))
        log_line(SH_LOG_WARNING, "%s brings nothing any more: %s", way.name.c_str(), why.text());
}

Status Bond::finish(sh_stream lane, sh_backend_event done) {
    std::lock_guard lock(mutex_);
    // Relays are opened and closed while no load is under way, so that the events of loads stay in order.
    if (std::ranges::none_of(ways_, [](const Way& way) { return way.relay->is_open(); }))
        return device_.event_record(done, lane);
    SH_TRY(device_.event_record(tail_, lane));
    SH_TRY(device_.stream_wait_event(joint_.stream(), tail_));
    SH_TRY(join_all(Relay::Follower::joint, joint_.stream()));
    return device_.event_record(done, joint_.stream());
}

Status Bond::synchronize(sh_stream lane) {
    SH_TRY(settle());
    SH_TRY(device_.stream_synchronize(lane));
    return device_.stream_synchronize(joint_.stream());
}

// Others may issue copies meanwhile, so the lock is not held while the host waits for what may take long.
Status Bond::settle() {
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

Status Bond::check() {
    std::lock_guard lock(mutex_);
    Status status;
    for (Way& way : ways_) {
        // One that was left out because of a call may have failed before, in a copy.
        if (way.distrusted || !way.relay->is_open()) continue;
        const bool at_work = way.relay->is_at_work();
        Status checked = way.relay->check();
        if (checked.ok()) continue;
        if (!at_work && !way.relay->is_distrusted()) {  // all that it has copied is right
            leave_out(way, checked);
            continue;
        }
        way.failed = way.distrusted = true;
        if (status.ok()) status = Status(SH_ERROR_BACKEND, way.name + " failed: " + checked.text());
    }
    return status;
}

// Others ask the bond meanwhile, and a helper that has failed may take long to answer.
Status Bond::end_reads() {
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

void Bond::prepare(BondedLoad* load, size_t events) const {
    if (load->ways.size() == ways_.size() + 1) return;
    load->ways.resize(ways_.size() + 1);
    for (BondedLoad::Way& way : load->ways) {
        way.waited.clear(events);
        way.copies_after = false;
    }
}

Status Bond::issue(sh_stream lane, std::span<const Command> commands, std::span<const sh_backend_event> events,
                   BondedLoad* load, WaitSet* waited, Issued* out, CopyMeter* meter) {
    std::lock_guard lock(mutex_);
    if (!divide(commands)) return transfer::issue(device_, lane, commands, events, waited, out, meter);
    prepare(load, events.size());
    // Without a meter, copies must not be timed.
    if (meter && !meter->running()) meter = &own_speed_.meter();
    SH_TRY(transfer::issue(device_, lane, own_, events, waited, out, meter));
    own_speed_.copied();
    own_speed_.look();
    for (const Part& part : parts_) {
        bool brought = false;
        SH_TRY(bring(part.way, part.command, events, load, out, &brought));
        if (!brought) left_.push_back(part.command);
    }
    return transfer::issue(device_, lane, left_, events, waited, out, meter);
}

// Returns false if the own link is to bring everything.
bool Bond::divide(std::span<const Command> commands) {
    own_.clear();
    parts_.clear();
    left_.clear();
    is_cut_ = false;
    for (DealtLink& link : links_) link.free_at_ns = 0;
    if (!own_speed_.known() || !std::ranges::any_of(ways_, &Way::usable)) return false;
    for (const Command& command : commands) divide(command);
    return !parts_.empty();
}

void Bond::divide(const Command& command) {
    const bool splits = carries(command) && command.bytes >= least;
    own_.push_back(command);
    own_.back().joins = command.joins && !is_cut_;
    is_cut_ = splits;
    if (!splits) return;
    const auto* const from = reinterpret_cast<const void*>(command.other);
    links_[0].bytes_per_ns = own_speed_.bytes_per_ns();
    for (size_t i = 0; i < ways_.size(); i++)
        links_[i + 1].bytes_per_ns =
            ways_[i].usable() && ways_[i].relay->takes(from, command.bytes) ? ways_[i].relay->speed() : 0;
    deal(command.bytes, part_grain(), least_part(), 0, links_);
    own_.back().bytes = links_[0].bytes;
    uint64_t done = links_[0].bytes;
    for (size_t i = 0; i < ways_.size(); i++) {
        if (!links_[i + 1].bytes) continue;
        parts_.push_back(
            {i,
             {command.kind, false, command.device + done, command.other + done, links_[i + 1].bytes, command.waits}});
        done += links_[i + 1].bytes;
    }
}

// A relay that fails is left out from then on, and the own link brings its part. An error is returned only if what the
// relay has queued cannot be waited for.
Status Bond::bring(size_t way, const Command& command, std::span<const sh_backend_event> events, BondedLoad* load,
                   Issued* out, bool* out_brought) {
    Way& by = ways_[way];
    if (by.failed || by.relay->is_distrusted()) return Status();
    BondedLoad::Way& of = load->ways[way + 1];
    Status status;
    if (load->written && !of.copies_after) {
        status = by.relay->copy_after(load->written);
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

Status Bond::issue_whole(sh_stream lane, std::span<const Command> commands, std::span<const sh_backend_event> events,
                         BondedLoad* load, WaitSet* waited, Issued* out, sh_stream* out_stream) {
    std::lock_guard lock(mutex_);
    uint64_t bytes = 0;
    for (const Command& command : commands) bytes += command.bytes;
    prepare(load, events.size());
    *out_stream = lane;
    even_out();
    const size_t chosen = choose(commands, bytes);
    const double speed = chosen ? ways_[chosen - 1].relay->speed() : own_speed_.bytes_per_ns();
    if (speed > 0) given_ns_[chosen] += static_cast<double>(bytes) / speed;
    if (!chosen) return transfer::issue(device_, lane, commands, events, waited, out);
    left_.clear();
    for (const Command& command : commands) {
        bool brought = false;
        SH_TRY(bring(chosen - 1, command, events, load, out, &brought));
        if (!brought) left_.push_back(command);
    }
    if (left_.empty()) {
        *out_stream = ways_[chosen - 1].relay->stream();
        return Status();
    }
    // What the relay has brought has ended, because its failure was waited for.
    for (Command& command : left_) command.joins = false;
    return transfer::issue(device_, lane, left_, events, waited, out);
}

// A way that was not used for a while does not catch up on all that the others were given meanwhile.
void Bond::even_out() {
    constexpr double kCatchUpNs = 2'000'000;
    const double most = *std::ranges::max_element(given_ns_);
    for (double& given : given_ns_) given = std::max(given - most, -kCatchUpNs);
}

// The way that would have carried the bytes first, 0 for the own link.
size_t Bond::choose(std::span<const Command> commands, uint64_t bytes) const {
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
