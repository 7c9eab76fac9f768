#include "transfer/bond/bond.h"

#include <algorithm>

#include "base/log.h"
#include "base/once_more.h"

namespace stagehand::transfer {
namespace {

// A smaller part is not worth the commands of a relay.
constexpr uint64_t kLeastPart = 1 << 20;
constexpr uint64_t kPartGrain = 64 << 10;

}  // namespace

Bond::~Bond() {
    if (begun_) (void)once_more([&] { return device_.event_destroy(begun_); }).ok();
}

size_t Bond::add(std::unique_ptr<Relay> relay) {
    links_.resize(ways_.size() + 2);
    ways_.emplace_back().relay = std::move(relay);
    return ways_.size() - 1;
}

double Bond::speed_in_use() const {
    double speed = 0;
    for (const Way& way : ways_)
        if (way.usable()) speed += way.relay->speed();
    return speed;
}

Status Bond::begin(sh_stream lane) {
    is_begun_ = false;
    for (DealtLink& link : links_) link.free_at_ns = 0;
    for (Way& way : ways_) way.used = false;
    // A load that failed may have left copies that nobody waits for.
    return join(lane);
}

Status Bond::join(sh_stream lane) {
    Status status;
    for (Way& way : ways_)
        if (Status joined = way.relay->join(lane); status.ok()) status = std::move(joined);
    return status;
}

Status Bond::synchronize() {
    Status status;
    for (Way& way : ways_)
        if (way.relay->is_open() && !(way.relay->settled() && way.relay->joined()))
            if (Status settled = way.relay->settle(); status.ok()) status = std::move(settled);
    return status;
}

Status Bond::issue(sh_stream lane, std::span<const Command> commands, std::span<const sh_backend_event> events,
                   WaitSet* waited, Issued* out, CopyMeter* meter) {
    if (!divide(commands)) return transfer::issue(device_, lane, commands, events, waited, out, meter);
    SH_TRY(note_beginning(lane));
    SH_TRY(transfer::issue(device_, lane, own_, events, waited, out, meter));
    SH_TRY(bring(events));
    for (const Part& part : parts_) {
        if (!ways_[part.way].failure.ok()) continue;
        ways_[part.way].bytes += part.command.bytes;
        out->bytes += part.command.bytes;
        out->commands++;
    }
    return transfer::issue(device_, lane, left_, events, waited, out, meter);
}

// Returns false if the own link is to bring everything.
bool Bond::divide(std::span<const Command> commands) {
    own_.clear();
    parts_.clear();
    left_.clear();
    is_cut_ = false;
    if (own_speed_ <= 0 || !std::ranges::any_of(ways_, &Way::usable)) return false;
    for (const Command& command : commands) divide(command);
    return !parts_.empty();
}

void Bond::divide(const Command& command) {
    const bool splits = command.kind == Command::Kind::to_device && command.bytes >= kLeastBytes;
    own_.push_back(command);
    own_.back().joins = command.joins && !is_cut_;
    is_cut_ = splits;
    if (!splits) return;
    const auto* const from = reinterpret_cast<const void*>(command.other);
    links_[0].bytes_per_ns = own_speed_;
    for (size_t i = 0; i < ways_.size(); i++)
        links_[i + 1].bytes_per_ns =
            ways_[i].usable() && ways_[i].relay->takes(from, command.bytes) ? ways_[i].relay->speed() : 0;
    deal(command.bytes, kPartGrain, kLeastPart, 0, links_);
    own_.back().bytes = links_[0].bytes;
    uint64_t done = links_[0].bytes;
    for (size_t i = 0; i < ways_.size(); i++) {
        if (!links_[i + 1].bytes) continue;
        parts_.push_back({i, {Command::Kind::to_device, false, command.device + done, command.other + done,
                              links_[i + 1].bytes, command.waits}});
        done += links_[i + 1].bytes;
    }
}

// What relays bring may be written after all loads before, as what the lane brings.
Status Bond::note_beginning(sh_stream lane) {
    if (is_begun_) return Status();
    if (!begun_) SH_TRY(device_.event_create(false, &begun_));
    SH_TRY(device_.event_record(begun_, lane));
    is_begun_ = true;
    return Status();
}

Status Bond::bring(Way& way, const Command& command, std::span<const sh_backend_event> events) {
    if (!way.used) {
        SH_TRY(way.relay->follow(begun_));
        way.waited.clear(events.size());
        way.used = true;
    }
    return way.relay->bring(command, events, &way.waited);
}

// A relay that fails is left out from then on, and the own link brings its part.
Status Bond::bring(std::span<const sh_backend_event> events) {
    for (const Part& part : parts_) {
        Way& way = ways_[part.way];
        if (way.failure.ok()) {
            Status status = bring(way, part.command, events);
            if (!way.relay->settled()) return status;
            if (status.ok()) continue;
            log_line(SH_LOG_WARNING, "a helper brings nothing any more: %s", status.text());
            way.failure = std::move(status);
        }
        left_.push_back(part.command);
    }
    return Status();
}

}  // namespace stagehand::transfer
