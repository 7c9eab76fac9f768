// SavedSpan: the device memory that a saved tensor spans, and how much of it a copy takes.
#pragma once

#include <cstdint>
#include <span>

#include <stagehand/spill.h>

#include "base/status.h"

namespace stagehand::core {

// Bytes of the device, and where the element whose indices are all 0 lies in them.
struct SavedSpan {
    uint64_t address = 0;
    uint64_t bytes = 0;  // 0: the tensor has no elements
    uint64_t offset = 0;
};

// Checks the description and computes what is copied: the bytes from the tensor's first to its last element, or its
// whole storage if the tensor is more than half of it. SH_ERROR_INVALID_ARGUMENT names the field that is impossible.
Status span_of(const sh_saved_tensor& tensor, SavedSpan* out);

}  // namespace stagehand::core
