// What a benchmark has found: rows of a figure, the limit that it is compared with, and their ratio.
#pragma once

#include <string>
#include <vector>

#include "json_output.h"
#include "terminal.h"

namespace stagehand::cli::bench {

enum class Unit {
    bytes_per_second,  // more is better
    seconds            // less is better
};

// One thing that was measured. The limit was measured in the same run.
struct Row {
    std::string name;
    Unit unit = Unit::bytes_per_second;
    double value = 0;
    double limit = 0;
    std::string limit_name;
    std::string remark = {};     // for people
    Json more = Json::object();  // further members, for programs

    double ratio() const { return limit > 0 ? value / limit : 0; }
};

struct GroupReport {
    std::string name;
    std::string about;
    std::vector<Row> rows;
    std::vector<std::string> notes;  // what was left out, and why
};

// "name  about", the table, and the notes.
std::string table_text(const GroupReport& group, const Terminal& terminal);

// {"rows": [...], "notes": [...]}
Json to_json(const GroupReport& group);

// The middle one; of an even number the mean of the two. `values` must not be empty.
double median(std::vector<double> values);

}  // namespace stagehand::cli::bench
