// SetReading: the figures of a set at a moment, and their JSON. docs/telemetry.md lists its members.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stagehand/members.h>

#include "telemetry/json_text.h"

namespace stagehand::telemetry {

// The members of a group, such as the experts of a layer.
struct GroupReading {
    uint64_t uses = 0, hits = 0;
};

struct SetReading {
    sh_set set = 0;
    std::string name;
    sh_set_info info = sh_sized<sh_set_info>();
    std::vector<GroupReading> groups;
};

// Adds the list "sets", unless there is none. Uses, hits and evictions are those since `before`.
void add_sets(JsonText& json, const std::vector<SetReading>& now, const std::vector<SetReading>& before = {});

}  // namespace stagehand::telemetry
