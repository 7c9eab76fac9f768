// What a control works on: a device whose memory leaves and comes back.
#pragma once

#include <string>
#include <vector>

#include <stagehand/device.h>
#include <stagehand/occupancy.h>

#include "base/status.h"
#include "control/order.h"
#include "telemetry/snapshot.h"

namespace stagehand::control {

// Thread-safe. A change does not wait for other changes: it returns SH_ERROR_BUSY instead.
class Occupant {
public:
    virtual ~Occupant() = default;
    virtual std::string name() const = 0;
    virtual Status change(const Order& order, sh_occupancy_change* out) = 0;
    virtual Status total(sh_occupancy_info* out) = 0;
    virtual Status tags(std::vector<sh_occupancy_info>* out) = 0;
    virtual Status memory(sh_memory_info* out) = 0;
    virtual std::vector<telemetry::RuntimeReading> runtimes() = 0;  // those that are not busy
};

}  // namespace stagehand::control
