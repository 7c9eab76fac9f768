#include "report/json_fields.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "exit_code.h"

namespace stagehand::cli {

JsonFields::JsonFields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) throw CommandError(ExitCode::model, fmt::format("{} is not a JSON object", where_));
}

const Json* JsonFields::find(const char* name) const {
    const auto found = json_.find(name);
    return found == json_.end() ? nullptr : &*found;
}

void JsonFields::refuse(const char* name, const std::string& why) const {
    throw CommandError(ExitCode::model, fmt::format("{}: \"{}\" {}", where_, name, why));
}

void JsonFields::require(const char* name) const {
    if (find(name) == nullptr) refuse(name, "is missing; a report needs telemetry of a runtime");
}

std::uint64_t JsonFields::count(const char* name) const {
    const Json* const value = find(name);
    if (value == nullptr) return 0;
    if (!value->is_number_unsigned()) refuse(name, "is not a whole number from 0 to 2^64 - 1");
    return value->get<std::uint64_t>();
}

std::uint64_t JsonFields::required_count(const char* name) const {
    require(name);
    return count(name);
}

double JsonFields::number(const char* name) const {
    const Json* const value = find(name);
    if (value == nullptr || value->is_null())  // null is written for what is not finite
        return 0;
    if (!value->is_number() || !std::isfinite(value->get<double>()) || value->get<double>() < 0)
        refuse(name, "is not a number from 0 on");
    return value->get<double>();
}

double JsonFields::required_number(const char* name) const {
    require(name);
    return number(name);
}

std::string JsonFields::text(const char* name) const {
    const Json* const value = find(name);
    if (value == nullptr) return "";
    if (!value->is_string()) refuse(name, "is not a text");
    return value->get<std::string>();
}

bool JsonFields::flag(const char* name) const {
    const Json* const value = find(name);
    if (value == nullptr) return false;
    if (!value->is_boolean()) refuse(name, "is not true or false");
    return value->get<bool>();
}

const Json& JsonFields::list(const char* name) const {
    static const Json none = Json::array();
    const Json* const value = find(name);
    if (value != nullptr && !value->is_array()) refuse(name, "is not a list");
    return value == nullptr ? none : *value;
}

}  // namespace stagehand::cli
