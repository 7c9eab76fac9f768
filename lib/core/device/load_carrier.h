// The carrier of a runtime's loads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/device/device.h"
#include "transfer/carrier/carrier.h"

namespace stagehand::core {

// What the device's options ask for. `user`: of the carrier, for the log. `most_pages`: that may be used to measure the
// link.
std::unique_ptr<transfer::Carrier> make_carrier(Device& device, const std::string& user, uint64_t most_pages);

}  // namespace stagehand::core
