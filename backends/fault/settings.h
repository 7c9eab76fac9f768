// Settings of a device of the fault backend: its own options, and the rest for the backend that it wraps.
#pragma once

#include <cstdint>
#include <string>

#include "fault/call_log.h"

namespace stagehand::fault {

struct Settings {
    std::string wrapped_name = "host";
    uint32_t wrapped_index = 0;
    std::string wrapped_options;
    bool any_call = true;
    Call fail_call = Call::device_open;
    uint64_t fail_at = 0;  // 0: no call fails
    uint64_t fail_count = 1;
    sh_status fail_status = SH_ERROR_BACKEND;
    bool late = false;  // see fault.h
    uint64_t delay_ns = 0;
    uint64_t delay_seed = 1;
    uint32_t ordered = 0;  // see fault.h
};

sh_status read_settings(const char* options, Settings* out);

}  // namespace stagehand::fault
