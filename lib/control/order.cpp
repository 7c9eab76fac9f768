#include "control/order.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include <stagehand/occupancy.h>
#include <nlohmann/json.hpp>

#include "base/number.h"

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
    {"/snapshot", Endpoint::snapshot, "GET"},
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

using Names = std::set<std::string, std::less<>>;

// One of two values would be ignored.
Status once(const std::string& name, Names* named) {
    return named->insert(name).second ? Status() : bad(cited(name) + " comes twice");
}

// --- bodies ---

// Reads the members of a body as they come. There is no tree of values: the destructor of nlohmann's tree takes memory,
// and would end the process if there is none.
class Body final : public nlohmann::json_sax<Json> {
public:
    explicit Body(Order* out) : out_(out) {}
    const Status& status() const { return status_; }

    bool null() override { return depth_ ? value(Kind::null, "null") : true; }
    bool boolean(bool is) override {
        flag_ = is;
        return value(Kind::flag, is ? "true" : "false");
    }
    bool number_integer(number_integer_t is) override { return number(static_cast<double>(is), std::to_string(is)); }
    bool number_unsigned(number_unsigned_t is) override { return number(static_cast<double>(is), std::to_string(is)); }
    bool number_float(number_float_t is, const string_t& text) override { return number(is, text); }
    bool string(string_t& text) override { return value(Kind::text, text); }
    bool binary(binary_t&) override { return false; }  // not in JSON
    bool start_object(size_t) override {
        if (depth_ && !value(Kind::other, "{...}")) return false;
        depth_++;
        return true;
    }
    bool key(string_t& name) override {
        name_ = std::move(name);
        return take(once(name_, &named_));
    }
    bool end_object() override { return depth_--, true; }
    bool start_array(size_t) override {
        if (depth_ == 1 && name_ == "tags")
            in_tags_ = true;
        else if (!value(Kind::other, "[...]"))
            return false;
        depth_++;
        return true;
    }
    bool end_array() override {
        in_tags_ = false;
        return depth_--, true;
    }
    bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
        return take(bad("the body is not JSON: the mistake is at byte " + std::to_string(position)));
    }

private:
    enum class Kind { null, flag, number, text, other };

    bool take(Status status) {
        status_ = std::move(status);
        return status_.ok();
    }
    bool number(double is, const std::string& text) {
        number_ = is;
        return value(Kind::number, text);
    }
    bool value(Kind kind, const std::string& text) {
        if (!depth_) return take(bad("the body is no JSON object"));
        return take(in_tags_ ? element(kind, text) : member(kind));
    }
    Status element(Kind kind, const std::string& text) {
        if (kind != Kind::text) return bad("tags has an element that is no text: " + cited(text));
        return add_tag(text, out_);
    }
    Status member(Kind kind) {
        if (name_ == "tags") return kind == Kind::null ? Status() : bad("tags is neither an array nor null");
        if (name_ == "wait_seconds")
            return kind == Kind::number ? set_wait(number_, out_) : bad("wait_seconds is no number");
        if (name_ != "if_needed" && name_ != "stage_to_cpu")
            return bad("there is no member " + cited(name_) +
                       "; the members are tags, stage_to_cpu, if_needed and wait_seconds");
        if (kind == Kind::null) return Status();
        if (kind != Kind::flag) return bad(name_ + " is neither true nor false");
        if (name_ == "if_needed")
            out_->if_needed = flag_;
        else
            out_->contents = flag_ ? SH_CONTENTS_STAGE : SH_CONTENTS_DROP;
        return Status();
    }

    Order* const out_;
    Status status_;
    size_t depth_ = 0;  // objects and arrays that have begun
    bool in_tags_ = false, flag_ = false;
    double number_ = 0;
    std::string name_;  // of the member
    Names named_;
};

Status read_body(std::string_view body, Order* out) {
    if (body.find_first_not_of(" \t\r\n") == std::string_view::npos) return Status();
    // The reader would take it for the end, and ignore the rest.
    if (const size_t nul = body.find('\0'); nul != std::string_view::npos)
        return bad("the body is not JSON: the mistake is at byte " + std::to_string(nul + 1));
    Body reader(out);
    (void)Json::sax_parse(body.begin(), body.end(), &reader);
    return reader.status();
}

// --- queries ---

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
        const std::optional<double> seconds = read_number<double>(value);
        return seconds ? set_wait(*seconds, out) : bad("wait_seconds is " + cited(value) + ", which is no number");
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
    Names named;
    while (!query.empty()) {
        const std::string_view part = query.substr(0, query.find('&'));
        query.remove_prefix(std::min(query.size(), part.size() + 1));
        if (part.empty()) continue;
        const size_t equals = part.find('=');
        std::string name, value;
        SH_TRY(decode(part.substr(0, equals), &name));
        if (equals != std::string_view::npos) SH_TRY(decode(part.substr(equals + 1), &value));
        if (name != "tags") SH_TRY(once(name, &named));
        SH_TRY(read_parameter(endpoint, name, value, out));
    }
    return Status();
}

struct Target {
    std::string_view path, query;
};

// A target may have a scheme and a host before its path: those of the server, whatever they are.
Target parts_of(std::string_view target) {
    if (!target.starts_with('/'))
        if (const size_t host = target.find("://"); host != std::string_view::npos)
            target.remove_prefix(std::min(target.find_first_of("/?", host + 3), target.size()));
    const size_t mark = std::min(target.find('?'), target.size());
    return {target.substr(0, mark), target.substr(std::min(mark + 1, target.size()))};
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
    const std::string_view path = parts_of(target).path;
    for (const Route& route : kRoutes)
        if (route.path == path) return &route;
    return nullptr;
}

Status read_order(const Route& route, const Request& request, Order* out) {
    *out = {};
    out->resumes = route.endpoint == Endpoint::resume || route.endpoint == Endpoint::wake_up;
    const std::string_view query = parts_of(request.target).query;
    if (!route.changes()) {
        const bool nothing = query.empty() && says_nothing(request.body);
        return nothing ? Status() : bad(std::string(route.path) + " takes no arguments, neither a query nor a body");
    }
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
