#include "control/order.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <stagehand/occupancy.h>
#include <nlohmann/json.hpp>

namespace stagehand::control {
namespace {

using Json = nlohmann::json;

constexpr Route kRoutes[] = {
    {"/release_memory_occupation", Endpoint::release, "GET, POST"},
    {"/resume_memory_occupation", Endpoint::resume, "GET, POST"},
    {"/memory", Endpoint::memory, "GET"},
    {"/metrics", Endpoint::metrics, "GET"},
    {"/sleep", Endpoint::sleep, "POST"},
    {"/wake_up", Endpoint::wake_up, "POST"},
    {"/is_sleeping", Endpoint::is_sleeping, "GET"},
};
constexpr double kLongestWait = 3600;
constexpr size_t kMostTags = 1024;

Status bad(const std::string& why) { return Status(SH_ERROR_INVALID_ARGUMENT, why); }

// A client's text for a message, cut where it is long.
std::string cited(std::string_view text) {
    constexpr size_t kMost = 80;
    return "\"" + std::string(text.substr(0, kMost)) + (text.size() > kMost ? "..." : "") + "\"";
}

Status add_tag(std::string tag, Order* out) {
    if (tag.empty() || tag.size() >= sizeof sh_occupancy_info::tag)
        return bad("the tag " + cited(tag) + " does not have 1 to 63 bytes");
    if (tag.find('\0') != std::string::npos) return bad("a tag has a NUL");
    if (out->tags.size() == kMostTags) return bad("there are more than " + std::to_string(kMostTags) + " tags");
    out->tags.push_back(std::move(tag));
    return Status();
}

Status set_wait(double seconds, Order* out) {
    if (!(seconds >= 0 && seconds <= kLongestWait)) return bad("wait_seconds is not between 0 and 3600");
    out->wait_seconds = seconds;
    return Status();
}

// --- bodies
// -----------------------------------------------------------------------------------------------------------

Status read_tags(const Json& value, Order* out) {
    if (value.is_null()) return Status();
    if (!value.is_array()) return bad("tags is neither an array nor null");
    for (const Json& tag : value) {
        if (!tag.is_string()) return bad("tags has an element that is no text: " + cited(tag.dump()));
        SH_TRY(add_tag(tag.get<std::string>(), out));
    }
    return Status();
}

Status read_member(const std::string& name, const Json& value, Order* out) {
    if (name == "tags") return read_tags(value, out);
    if (name == "wait_seconds")
        return value.is_number() ? set_wait(value.get<double>(), out) : bad("wait_seconds is no number");
    if (name != "if_needed" && name != "stage_to_cpu")
        return bad("there is no member " + cited(name) +
                   "; the members are tags, stage_to_cpu, if_needed and wait_seconds");
    if (value.is_null()) return Status();
    if (!value.is_boolean()) return bad(name + " is neither true nor false");
    if (name == "if_needed")
        out->if_needed = value.get<bool>();
    else
        out->contents = value.get<bool>() ? SH_CONTENTS_STAGE : SH_CONTENTS_DROP;
    return Status();
}

Status read_body(std::string_view body, Order* out) {
    if (body.find_first_not_of(" \t\r\n") == std::string_view::npos) return Status();
    Json document;
    try {
        document = Json::parse(body.begin(), body.end());
    } catch (const Json::parse_error& error) {
        return bad("the body is not JSON: the mistake is at byte " + std::to_string(error.byte));
    }
    if (document.is_null()) return Status();
    if (!document.is_object()) return bad("the body is no JSON object");
    for (const auto& [name, value] : document.items()) SH_TRY(read_member(name, value, out));
    return Status();
}

// --- queries
// ----------------------------------------------------------------------------------------------------------

int digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

Status decode(std::string_view text, std::string* out) {
    out->clear();
    for (size_t i = 0; i < text.size(); i++) {
        if (text[i] != '%') {
            *out += text[i] == '+' ? ' ' : text[i];
            continue;
        }
        const int high = i + 2 < text.size() ? digit(text[i + 1]) : -1;
        const int low = i + 2 < text.size() ? digit(text[i + 2]) : -1;
        if (high < 0 || low < 0) return bad("the query has a % without two digits: " + cited(text));
        *out += static_cast<char>(high * 16 + low);
        i += 2;
    }
    return Status();
}

Status read_level(const std::string& value, Order* out) {
    if (value != "1" && value != "2")
        return bad("level is " + cited(value) + ", not 1 or 2" +
                   (value == "0" ? ": only the engine itself can stop its scheduler" : ""));
    out->contents = value == "2" ? SH_CONTENTS_DROP : SH_CONTENTS_DEFAULT;
    return Status();
}

Status read_parameter(Endpoint endpoint, const std::string& name, const std::string& value, Order* out) {
    const bool sleep = endpoint == Endpoint::sleep;
    if (name == "tags") return add_tag(value, out);
    if (name == "wait_seconds") {
        char* end = nullptr;
        const double seconds = std::strtod(value.c_str(), &end);
        if (value.empty() || *end) return bad("wait_seconds is " + cited(value) + ", which is no number");
        return set_wait(seconds, out);
    }
    if (sleep && name == "level") return read_level(value, out);
    if (sleep && name == "mode") {
        if (value == "abort" || value == "wait" || value == "keep") return Status();
        return bad("mode is " + cited(value) + ", not abort, wait or keep");
    }
    return bad("there is no parameter " + cited(name) + "; the parameters are " +
               (sleep ? "level, mode, tags and wait_seconds" : "tags and wait_seconds"));
}

Status read_query(Endpoint endpoint, std::string_view query, Order* out) {
    while (!query.empty()) {
        const std::string_view part = query.substr(0, query.find('&'));
        query.remove_prefix(std::min(query.size(), part.size() + 1));
        if (part.empty()) continue;
        const size_t equals = part.find('=');
        std::string name, value;
        SH_TRY(decode(part.substr(0, equals), &name));
        if (equals != std::string_view::npos) SH_TRY(decode(part.substr(equals + 1), &value));
        SH_TRY(read_parameter(endpoint, name, value, out));
    }
    return Status();
}

bool says_nothing(std::string_view body) {
    const size_t begin = body.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos) return true;
    const std::string_view text = body.substr(begin, body.find_last_not_of(" \t\r\n") + 1 - begin);
    return text == "{}" || text == "null";
}

}  // namespace

bool Route::takes(std::string_view method) const {
    const std::string_view all = methods;
    return method == "GET" ? all.starts_with("GET") : method == "POST" && all.ends_with("POST");
}

bool Route::changes() const {
    return endpoint == Endpoint::release || endpoint == Endpoint::resume || endpoint == Endpoint::sleep ||
           endpoint == Endpoint::wake_up;
}

const Route* find_route(std::string_view target) {
    const std::string_view path = target.substr(0, target.find('?'));
    for (const Route& route : kRoutes)
        if (route.path == path) return &route;
    return nullptr;
}

Status read_order(const Route& route, const Request& request, Order* out) {
    *out = {};
    out->resumes = route.endpoint == Endpoint::resume || route.endpoint == Endpoint::wake_up;
    const size_t mark = request.target.find('?');
    const std::string_view query = mark == std::string_view::npos ? "" : request.target.substr(mark + 1);
    if (route.endpoint == Endpoint::release || route.endpoint == Endpoint::resume) {
        if (!query.empty()) return bad(std::string(route.path) + " takes its arguments in a JSON body, not in a query");
        return read_body(request.body, out);
    }
    out->if_needed = true;
    if (!says_nothing(request.body))
        return bad(std::string(route.path) + " takes its arguments in the query, not in a body");
    return read_query(route.endpoint, query, out);
}

}  // namespace stagehand::control
