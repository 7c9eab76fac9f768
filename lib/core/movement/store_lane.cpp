#include "core/movement/store_lane.h"

#include "base/log.h"

namespace stagehand::core {
namespace {

// Pages of a helped write-back are used again only after the host has asked the helpers, which takes some time.
uint64_t worth_asking() { return 4 * transfer::Bond::least_bytes(); }

}  // namespace

Status StoreLane::open(const std::string& runtime) {
    SH_TRY(lane_.open());
    return lane_.meet("the write-backs of " + runtime);
}

Status StoreLane::take_helpers(uint64_t bytes) {
    if (!HelpedLane::is_worth_helpers(bytes)) return rest();
    lane_.take_helpers(bytes);
    return Status();
}

Status StoreLane::issue(std::span<const transfer::Command> commands, std::span<const sh_backend_event> waits,
                        bool may_help, Trace* trace, transfer::Issued* out) {
    SH_TRY(end_doubts());
    *trace = {false, lane_.distrusted()};
    uint64_t bytes = 0;
    for (const transfer::Command& command : commands) bytes += command.bytes;
    if (!may_help || !lane_.helped() || bytes < worth_asking()) return issue_alone(commands, waits, out);
    const uint64_t helped = lane_.helped_bytes();
    const Status status = issue_helped(commands, waits, out);
    trace->any = lane_.helped_bytes() != helped;
    if (status.ok()) return status;
    broken_off_ = true;
    if (!lane_.has_lost_helper()) return status;
    // Nobody knows what the lost helper has copied.
    SH_TRY(end_doubts());
    *trace = {false, lane_.distrusted()};
    *out = {};
    return issue_alone(commands, waits, out);
}

Status StoreLane::issue_alone(std::span<const transfer::Command> commands, std::span<const sh_backend_event> waits,
                              transfer::Issued* out) {
    waited_.clear(waits.size());
    return transfer::issue(device_, lane_.stream(), commands, waits, &waited_, out);
}

Status StoreLane::issue_helped(std::span<const transfer::Command> commands, std::span<const sh_backend_event> waits,
                               transfer::Issued* out) {
    lane_.come_after(waits, 0);
    for (const transfer::Command& command : commands) {
        if (command.kind == transfer::Command::Kind::to_host) {
            SH_TRY(lane_.copy(command.device, reinterpret_cast<void*>(command.other), command.bytes));
            out->bytes += command.bytes;
            out->commands++;
        } else {
            SH_TRY(issue_alone({&command, 1}, waits, out));
        }
    }
    return Status();
}

bool StoreLane::is_right(const Trace& trace) {
    const Status checked = lane_.check();
    if (lane_.distrusted() == trace.distrusted) return true;
    log_line(SH_LOG_WARNING, "a write-back is copied again, because a device that helps has failed%s%s",
             checked.ok() ? "" : ": ", checked.ok() ? "" : checked.text());
    return false;
}

Status StoreLane::end_doubts() {
    const size_t distrusted = lane_.distrusted();
    if (!broken_off_ && distrusted == settled_) return Status();
    SH_TRY(lane_.synchronize());
    SH_TRY(lane_.end_doubt());
    broken_off_ = false;
    settled_ = distrusted;
    return Status();
}

}  // namespace stagehand::core
