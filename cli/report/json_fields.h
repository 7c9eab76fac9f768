// Members of a JSON object from a file that anybody may have written.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "exit_code.h"
#include "json_output.h"

namespace stagehand::cli {

// The methods throw CommandError if a member has another type than asked for. The message begins with where(). A member
// that is absent is 0, empty or false, unless it is required.
class JsonFields {
public:
    // Throws CommandError if `json` is no object. `json` must outlive this.
    JsonFields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
        if (!json.is_object()) throw CommandError(ExitCode::model, fmt::format("{} is not a JSON object", where_));
    }

    const std::string& where() const { return where_; }
    const Json* find(const char* name) const {
        const auto found = json_.find(name);
        return found == json_.end() ? nullptr : &*found;
    }
    std::uint64_t count(const char* name) const {
        return get<std::uint64_t>(name, "is not a whole number from 0 to 2^64 - 1",
                                  [](const Json& json) { return json.is_number_unsigned(); });
    }
    std::uint64_t required_count(const char* name) const { return require(name), count(name); }
    // Finite, and not negative. Null is written for what is not finite, and is 0 here.
    double number(const char* name) const {
        const Json* const value = find(name);
        if (value != nullptr && value->is_null()) return 0;
        return get<double>(name, "is not a number from 0 on", [](const Json& json) {
            return json.is_number() && std::isfinite(json.get<double>()) && json.get<double>() >= 0;
        });
    }
    double required_number(const char* name) const { return require(name), number(name); }
    std::string text(const char* name) const {
        return get<std::string>(name, "is not a text", [](const Json& json) { return json.is_string(); });
    }
    bool flag(const char* name) const {
        return get<bool>(name, "is not true or false", [](const Json& json) { return json.is_boolean(); });
    }
    const Json& list(const char* name) const {
        static const Json none = Json::array();
        const Json* const value = find(name);
        if (value != nullptr && !value->is_array()) refuse(name, "is not a list");
        return value == nullptr ? none : *value;
    }

    [[noreturn]] void refuse(const char* name, const std::string& why) const {
        throw CommandError(ExitCode::model, fmt::format("{}: \"{}\" {}", where_, name, why));
    }

private:
    template <typename Value, typename IsOne>
    Value get(const char* name, const char* why, IsOne is_one) const {
        const Json* const value = find(name);
        if (value == nullptr) return {};
        if (!is_one(*value)) refuse(name, why);
        return value->get<Value>();
    }
    void require(const char* name) const {
        if (find(name) == nullptr) refuse(name, "is missing; a report needs telemetry of a runtime");
    }

    const Json& json_;
    std::string where_;
};

}  // namespace stagehand::cli
