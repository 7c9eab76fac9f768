// Programs for the GPU, one for each format of elements.
#pragma once

#include "gpu/device.h"

namespace SH_GPU_NAMESPACE {

constexpr size_t kFormats = 5;  // SH_BACKEND_FORMAT_*

// Loads the programs by their names, in the order of the formats, unless they are there. Inside a Scope.
sh_status load(Device& device, Programs& programs, const char* source, const char* const (&names)[kFormats]);
void unload(Programs& programs);

}  // namespace SH_GPU_NAMESPACE
