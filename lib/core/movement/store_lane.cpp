#include "core/movement/store_lane.h"

#include "base/log.h"
#include "base/no_throw.h"

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
                        bool may_help, Trace* trace, transfer::Issued* out, bool* out_lost) {
    *trace = {false, lane_.distrusted()};
    *out_lost = false;
    uint64_t bytes = 0;
    for (const transfer::Command& command : commands) bytes += command.bytes;
    if (!may_help || !lane_.helped() || bytes < worth_asking()) return issue_alone(commands, waits, out);
    const uint64_t helped = lane_.helped_bytes();
    const Status status = issue_helped(commands, waits, out);
    trace->any = lane_.helped_bytes() != helped;
    broken_off_ += !status.ok();
    *out_lost = !status.ok() && lane_.has_lost_helper();
    return status;
}

Status StoreLane::record(sh_backend_event event) {
    const Status status = lane_.record(event);
    broken_off_ += !status.ok() && lane_.helped();
    return status;
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
    const Status checked = no_throw([&] { return lane_.check(); });
    if (lane_.distrusted() == trace.distrusted) return true;
    log_line(SH_LOG_WARNING, "a write-back is copied again, because a device that helps has failed%s%s",
             checked.ok() ? "" : ": ", checked.ok() ? "" : checked.text());
    return false;
}

bool StoreLane::in_doubt() const { return !(doubt() == settled_) || lane_.host_is_doubtful(); }

Status StoreLane::settle() {
    SH_TRY(lane_.settle());
    return lane_.end_doubt();
}

}  // namespace stagehand::core
