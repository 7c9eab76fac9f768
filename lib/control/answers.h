// The answers of a control: which status a failure has, and the documents. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stagehand/device.h>
#include <stagehand/occupancy.h>

#include "base/status.h"
#include "control/http.h"
#include "control/order.h"
#include "telemetry/snapshot.h"

namespace stagehand::control {

// A failure. `error` is a short word for programs, `message` a sentence for people.
Answer failure(unsigned status, const char* error, std::string_view message);

Answer unauthorized();
Answer unknown_path(std::string_view target);
Answer no_device(const Route& route);
Answer wrong_method(const Route& route, std::string_view method);
Answer malformed(const Status& why);

// What has become of an order. `found` are the tags after it.
Answer answer_to(const Order& order, const Status& result, const sh_occupancy_change& change,
                 const std::vector<sh_occupancy_info>& found);
// A failure of a call that reads.
Answer unreadable(const Status& why);

// All figures of a device at a moment.
struct Figures {
    std::string device;
    sh_occupancy_info total = sh_sized<sh_occupancy_info>();
    std::vector<sh_occupancy_info> tags;
    sh_memory_info memory = sh_sized<sh_memory_info>();
    std::vector<telemetry::RuntimeReading> runtimes;
};

// The figures of a tag by name.
struct TagFigure {
    const char* name;
    uint64_t sh_occupancy_info::*value;
    bool counts;  // never falls
    const char* help;
};
inline constexpr TagFigure kTagFigures[] = {
    {"allocations", &sh_occupancy_info::allocations, false, "Allocations of a tag."},
    {"bytes", &sh_occupancy_info::bytes, false, "Sizes of a tag's allocations, as the engine asked for them."},
    {"device_bytes", &sh_occupancy_info::device_bytes, false, "Device memory that a tag holds."},
    {"staged_bytes", &sh_occupancy_info::staged_bytes, false, "Contents of a tag that only host memory or a file has."},
    {"host_bytes", &sh_occupancy_info::host_bytes, false, "Host memory that is kept for a tag's contents."},
    {"pinned_bytes", &sh_occupancy_info::pinned_bytes, false, "The pinned part of a tag's host memory."},
    {"file_bytes", &sh_occupancy_info::file_bytes, false, "The part of a tag's contents that a file holds."},
    {"cycles", &sh_occupancy_info::cycles, true, "How often a tag came back."},
};

Answer is_sleeping(const sh_occupancy_info& total);
Answer memory_document(const Figures& figures);

const char* state_name(uint32_t state);

}  // namespace stagehand::control
