#include "report.h"

#include <algorithm>

#include <fmt/format.h>

#include "model/quantity.h"
#include "table.h"
#include "units.h"

namespace stagehand::cli::bench {

namespace {

std::string figure_text(Unit unit, double figure) {
    return unit == Unit::seconds ? model::format_duration(figure * 1e9) : model::format_rate(figure);
}

const char* to_string(Unit unit) { return unit == Unit::seconds ? "seconds" : "bytes_per_second"; }

}  // namespace

bool Row::beats_limit() const {
    return firm && (unit == Unit::seconds ? is_below(value, limit) : is_below(limit, value));
}

std::string table_text(const GroupReport& group, const Terminal& terminal) {
    std::string text = legible(terminal, fmt::format("{}  {}\n", inked(terminal, Ink::bold, group.name),
                                                     inked(terminal, Ink::dim, group.about)));
    const bool remarks =
        std::any_of(group.rows.begin(), group.rows.end(), [](const Row& row) { return !row.remark.empty(); });
    const bool marked =
        std::any_of(group.rows.begin(), group.rows.end(), [](const Row& row) { return row.beats_limit(); });
    Table table({{"what"},
                 {"measured", Align::right},
                 {"limit", Align::right},
                 {"ratio", Align::right},
                 {"the limit is"},
                 {remarks ? "besides" : ""}});
    for (const Row& row : group.rows) {
        table.add({row.name, figure_text(row.unit, row.value), figure_text(row.unit, row.limit),
                   ratio_text(row.value, row.limit) + (row.beats_limit() ? " *"
                                                       : marked          ? "  "
                                                                         : ""),
                   row.limit_name, row.remark});
    }
    if (!group.rows.empty()) text += table.text(terminal);
    if (marked) {
        text +=
            "* better than the limit, which is a measurement too: the device was faster here than when the limit was "
            "measured\n";
    }
    for (const std::string& note : group.notes) text += legible(terminal, note) + "\n";
    return text + "\n";
}

Json to_json(const GroupReport& group) {
    Json rows = Json::array();
    for (const Row& row : group.rows) {
        Json json = {{"name", row.name},
                     {"unit", to_string(row.unit)},
                     {"value", row.value},
                     {"limit", row.limit},
                     {"limit_name", row.limit_name},
                     {"ratio", row.ratio()},
                     {"beats_limit", row.beats_limit()}};
        json.update(row.more);
        rows.push_back(std::move(json));
    }
    return {{"rows", std::move(rows)}, {"notes", group.notes}};
}

}  // namespace stagehand::cli::bench
