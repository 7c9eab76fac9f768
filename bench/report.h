// The results of a benchmark: rows of a figure, the limit that the figure is compared with, and their ratio.
#pragma once

#include <string>
#include <vector>

#include "json_output.h"
#include "median.h"
#include "terminal.h"

namespace stagehand::cli::bench {

enum class Unit {
    bytes_per_second,  // more is better
    seconds            // less is better
};

// One measurement. Its limit was measured in the same run.
struct Row {
    std::string name;
    Unit unit = Unit::bytes_per_second;
    double value = 0;
    double limit = 0;
    std::string limit_name;
    std::string remark = {};     // for people
    Json more = Json::object();  // further members, for programs

    // Nothing is better than the limit, but the limit is a measurement too. Otherwise the limit is for comparison only.
    bool firm = false;

    double ratio() const { return limit > 0 ? value / limit : 0; }
    // Whether the value is better than a firm limit: the limit was then measured lower than it is.
    bool beats_limit() const;
};

struct GroupReport {
    std::string name;
    std::string about;
    std::vector<Row> rows;
    std::vector<std::string> notes;  // the measurements that were left out, with the reasons
};

// "name  about", the table, and the notes.
std::string table_text(const GroupReport& group, const Terminal& terminal);

// {"rows": [...], "notes": [...]}
Json to_json(const GroupReport& group);

}  // namespace stagehand::cli::bench
