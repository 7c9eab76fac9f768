#include "core/device/helped_lane.h"

#include "base/log.h"
#include "base/no_throw.h"
#include "base/once_more.h"

namespace stagehand::core {

HelpedLane::HelpedLane(Device& device, transfer::Direction direction, bool brief)
    : device_(device),
      direction_(direction),
      helpers_(device, direction, brief),
      meter_(device.backend()),
      turns_(device, direction) {}

// 5 ms of a PCIe link.
bool HelpedLane::is_worth_helpers(uint64_t bytes) { return bytes >= 128 * transfer::Bond::least_bytes(); }

Status HelpedLane::open() {
    if (lane_.is_open()) return Status();
    return device_.lanes().lend(direction_, &lane_);
}

void HelpedLane::gather(uint64_t bytes, const std::string& purpose) {
    if (!is_worth_helpers(bytes)) return;
    const Status status = no_throw([&] { return meet(purpose); });
    if (!status.ok()) log_line(SH_LOG_WARNING, "nobody helps %s: %s", device_.name().c_str(), status.text());
    if (status.ok()) take_helpers(bytes);
}

void HelpedLane::take_helpers(uint64_t bytes) {
    if (!is_worth_helpers(bytes) || !helpers_.any()) return;
    bonded_.clear();
    come_after({}, 0);
    gathered_ = true;
    helpers_.get_ready();
}

Status HelpedLane::disband() {
    if (!gathered_) return Status();
    SH_TRY(helpers_.rest());
    gathered_ = false;
    return Status();
}

void HelpedLane::come_after(std::span<const sh_backend_event> events, sh_backend_event written) {
    after_.assign(events.begin(), events.end());
    for (transfer::BondedLoad::Way& way : bonded_.ways) {
        way.waited.clear(after_.size());
        way.copies_after = false;
    }
    bonded_.written = written;
    waited_.clear(after_.size());
    for (uint32_t i = 0; i < after_.size(); i++) waited_.add(i);
}

Status HelpedLane::copy(uint64_t on_device, void* on_host, uint64_t bytes) {
    const bool to_device = direction_ == transfer::Direction::to_device;
    link().note_use(device_.backend().now_ns());
    if (!helped())
        return to_device ? device_.backend().copy_to_device(lane_.stream(), on_device, on_host, bytes)
                         : device_.backend().copy_to_host(lane_.stream(), on_host, on_device, bytes);
    helpers_.choose();
    const auto kind = to_device ? transfer::Command::Kind::to_device : transfer::Command::Kind::to_host;
    const transfer::Waits waits{0, static_cast<uint32_t>(after_.size())};
    const transfer::Command command{kind, false, on_device, reinterpret_cast<uint64_t>(on_host), bytes, waits};
    transfer::Issued issued;
    return helpers_.bond().issue(lane_.stream(), {&command, 1}, after_, &bonded_, &waited_, &issued, &meter_);
}

Status HelpedLane::copy_packed(const sh_backend_tiles& tiles, std::span<const sh_backend_event> after, bool* doubtful) {
    link().note_use(device_.backend().now_ns());
    return turns_.copy(lane_.stream(), tiles, after, doubtful);
}

Status HelpedLane::record(sh_backend_event event) {
    return once_more([&] {
        return helped() ? helpers_.bond().finish(lane_.stream(), event)
                        : device_.backend().event_record(event, lane_.stream());
    });
}

bool HelpedLane::has_lost_helper() {
    const size_t before = lost_;
    lost_ = helpers_.bond().failed();
    return lost_ != before;
}

Status HelpedLane::synchronize() {
    if (!lane_.is_open()) return Status();
    SH_TRY(turns_.synchronize());
    return once_more([&] {
        return helped() ? helpers_.bond().synchronize(lane_.stream())
                        : device_.backend().stream_synchronize(lane_.stream());
    });
}

}  // namespace stagehand::core
