#include "core/runtime/pauses.h"

#include "base/log.h"
#include "base/no_throw.h"

namespace stagehand::core {

Status Pauses::release(Lock& lock) {
    const uint32_t before = gate_.occupancy();
    Status status;
    // Another change of the plan may run in place of this one.
    while (status.ok() && gate_.occupancy() != SH_OCCUPANCY_RELEASED) {
        status = gate_.usable();
        if (status.ok()) status = gate_.unused();
        if (!status.ok()) break;
        gate_.set_occupancy(before == SH_OCCUPANCY_RUNNING ? uint32_t(SH_OCCUPANCY_RELEASING) : before);
        status = no_throw([&] { return leave(lock); });
    }
    if (!status.ok() && !gate_.lost() && gate_.occupancy() != SH_OCCUPANCY_RELEASED) gate_.set_occupancy(before);
    return gate_.closing() ? Status() : status;  // a runtime that goes gives its memory back anyway
}

Status Pauses::leave(Lock& lock) {
    SH_TRY(gate_.note(graphs_.wait_for_launches(lock)));
    SH_TRY(gate_.unused());  // again, because the mutex was given up
    const bool keeps_places = graphs_.hold_the_plan();
    Status status = no_throw([&] { return plan_.leave(keeps_places, lock); });
    if (gate_.occupancy() == SH_OCCUPANCY_RELEASED && !status.ok()) {
        // Only pages that nobody uses stay on the device. The pool gives them back later.
        log_line(SH_LOG_WARNING, "%s is released, but memory of it stays on the device: %s", gate_.name().c_str(),
                 status.text());
        return Status();
    }
    if (status.ok() || !keeps_places || !plan_.is_emptied() || !gate_.usable().ok() || status.code() == SH_ERROR_BUSY)
        return status;
    // A graph must not be launched without its memory.
    if (no_throw([&] { return plan_.repair(lock); }).ok()) return status;
    return graphs_.drop(lock).ok() ? status.within("its graphs have to be captured again") : status;
}

Status Pauses::take(Lock& lock) {
    if (gate_.closing()) return Status();
    gate_.set_occupancy(SH_OCCUPANCY_RESUMING);
    const Status status = no_throw([&] { return plan_.come_back(graphs_.hold_the_plan(), lock); });
    if (!status.ok()) gate_.set_occupancy(SH_OCCUPANCY_RELEASED);
    return gate_.closing() ? Status() : gate_.note(status);
}

void Pauses::run() {
    if (!gate_.usable().ok()) return;
    gate_.set_occupancy(SH_OCCUPANCY_RUNNING);
    cycles_++;
    access_.look_ahead(memory_.device.now_ns());
}

}  // namespace stagehand::core
