#include "telemetry/set_reading.h"

#include <algorithm>

#include "telemetry/figures.h"

namespace stagehand::telemetry {

namespace {

// Layers of any model. More groups would fill a disk with their lists.
constexpr size_t kMostGroups = 1024;

}  // namespace

void add_sets(JsonText& json, const std::vector<SetReading>& now, const std::vector<SetReading>& before) {
    if (now.empty()) return;
    json.begin_array("sets");
    for (const SetReading& set : now) {
        const auto same = std::ranges::find(before, set.set, &SetReading::set);
        const SetReading from = same == before.end() ? SetReading() : *same;
        json.begin_object().add("name", set.name);
        for (const SetFigure& figure : kSetFigures)
            json.add(figure.name,
                     set.info.*figure.value - (figure.in_line == InLine::change ? from.info.*figure.value : 0));
        if (set.groups.size() > kMostGroups) {
            json.end_object();
            continue;
        }
        const auto list = [&](const char* name, uint64_t GroupReading::*value) {
            json.begin_array(name);
            for (size_t i = 0; i < set.groups.size(); i++)
                json.add(nullptr, set.groups[i].*value - (from.groups.empty() ? 0 : from.groups[i].*value));
            json.end_array();
        };
        list("group_uses", &GroupReading::uses);
        list("group_hits", &GroupReading::hits);
        json.end_object();
    }
    json.end_array();
}

}  // namespace stagehand::telemetry
