// The names of the devices that help another one to load.
#pragma once

#include <string>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"

namespace stagehand::core {

// In place of names: all open devices of the backend that consent.
constexpr const char* kAnyHelper = "auto";

// "cuda:1" is device 1 of backend "cuda". "cuda" is its first device.
Status split_name(const std::string& name, std::string* out_backend, uint32_t* out_index);
// Splits "cuda:1,cuda:2". Empty text has no names.
Status split_helpers(const std::string& text, std::vector<std::string>* out);
// Returns an error that names what is wrong with options.helpers of the device with this name. NULL is right.
Status check_helpers(const char* helpers, const std::string& device_name, const BackendDevice& device);

}  // namespace stagehand::core
