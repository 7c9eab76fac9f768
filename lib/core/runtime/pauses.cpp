#include "core/runtime/pauses.h"

#include "base/log.h"
#include "base/no_throw.h"

namespace stagehand::core {

Status Pauses::release(Lock& lock) {
    const uint32_t before = parts_.gate.occupancy();
    Status status;
    // Another change of the plan may run in place of this one.
    while (status.ok() && parts_.gate.occupancy() != SH_OCCUPANCY_RELEASED) {
        status = parts_.gate.usable();
        if (status.ok()) status = parts_.gate.unused();
        if (!status.ok()) break;
        parts_.gate.set_occupancy(before == SH_OCCUPANCY_RUNNING ? uint32_t(SH_OCCUPANCY_RELEASING) : before);
        status = no_throw([&] { return leave(lock); });
    }
    if (!status.ok() && !parts_.gate.lost() && parts_.gate.occupancy() != SH_OCCUPANCY_RELEASED)
        parts_.gate.set_occupancy(before);
    return parts_.gate.closing() ? Status() : status;  // a runtime that goes gives its memory back anyway
}

Status Pauses::leave(Lock& lock) {
    SH_TRY(parts_.gate.note(graphs_.wait_for_launches(lock)));
    SH_TRY(parts_.gate.unused());  // again, because the mutex was given up
    const bool keeps_places = graphs_.hold_the_plan();
    Status status = no_throw([&] { return plan_.leave(keeps_places, lock); });
    if (parts_.gate.occupancy() == SH_OCCUPANCY_RELEASED && !status.ok()) {
        // Only pages that nobody uses stay on the device. The pool gives them back later.
        log_line(SH_LOG_WARNING, "%s is released, but memory of it stays on the device: %s", parts_.gate.name().c_str(),
                 status.text());
        return Status();
    }
    if (status.ok() || !keeps_places || !plan_.is_emptied() || !parts_.gate.usable().ok() ||
        status.code() == SH_ERROR_BUSY)
        return status;
    // A graph must not be launched without its memory.
    if (no_throw([&] { return plan_.repair(lock); }).ok()) return status;
    return graphs_.drop(lock).ok() ? status.within("its graphs have to be captured again") : status;
}

Status Pauses::take(Lock& lock) {
    if (parts_.gate.closing()) return Status();
    parts_.gate.set_occupancy(SH_OCCUPANCY_RESUMING);
    const Status status = no_throw([&] { return plan_.come_back(graphs_.hold_the_plan(), lock); });
    if (!status.ok()) parts_.gate.set_occupancy(SH_OCCUPANCY_RELEASED);
    return parts_.gate.closing() ? Status() : parts_.gate.note(status);
}

void Pauses::run() {
    if (!parts_.gate.usable().ok()) return;
    parts_.gate.set_occupancy(SH_OCCUPANCY_RUNNING);
    cycles_++;
    access_.look_ahead(parts_.backend().now_ns());
}

}  // namespace stagehand::core
