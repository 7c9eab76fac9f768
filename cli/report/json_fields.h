// Members of a JSON object from a file that anybody may have written.
#pragma once

#include <cstdint>
#include <string>

#include "json_output.h"

namespace stagehand::cli {

// The methods throw CommandError if a member has another type than asked for. The message begins with where(). A member
// that is absent is 0, empty or false, unless it is required.
class JsonFields {
public:
    // Throws CommandError if `json` is no object. `json` must outlive this.
    JsonFields(const Json& json, std::string where);

    const std::string& where() const { return where_; }
    const Json* find(const char* name) const;
    std::uint64_t count(const char* name) const;
    std::uint64_t required_count(const char* name) const;
    // Finite, and not negative.
    double number(const char* name) const;
    double required_number(const char* name) const;
    std::string text(const char* name) const;
    bool flag(const char* name) const;
    const Json& list(const char* name) const;

    [[noreturn]] void refuse(const char* name, const std::string& why) const;

private:
    void require(const char* name) const;

    const Json& json_;
    std::string where_;
};

}  // namespace stagehand::cli
