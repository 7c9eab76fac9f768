// Issues the commands of routes to a stream.
#pragma once

#include <cstdint>
#include <span>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/carrier/copy_meter.h"
#include "transfer/route/command.h"

namespace stagehand::transfer {

struct Issued {
    uint64_t commands = 0;  // number of copies
    uint64_t bytes = 0;
};

// For each command, issues the waits that were not issued yet, then the copy. Commands that join become one copy unless
// waits stand between them. Waits are ranges of `events`, and an event of 0 needs no wait. Stops at the first failure.
// Adds to `out`. A meter times some of the copies over the link.
//
// Only one thread at a time may use a `waited`, because a wait must have been issued before a copy relies on its mark.
// Different lists of commands may be issued to a stream in any order: a copy then only waits for more events than
// necessary.
Status issue(BackendDevice& device, sh_stream stream, std::span<const Command> commands,
             std::span<const sh_backend_event> events, WaitSet* waited, Issued* out, CopyMeter* meter = nullptr);

}  // namespace stagehand::transfer
