#include "control/answers.h"

#include <algorithm>

#include "telemetry/figures.h"
#include "telemetry/json_text.h"

namespace stagehand::control {
namespace {

using telemetry::JsonText;

struct Kind {
    unsigned status;
    const char* error;
};

// Those that an order can fail with. All others are failures of the device or of the library.
Kind kind_of(const Order& order, sh_status code) {
    switch (code) {
        case SH_ERROR_NOT_FOUND:
            return {400, "unknown_tag"};
        case SH_ERROR_INVALID_ARGUMENT:
            return {400, "bad_request"};
        case SH_ERROR_INVALID_STATE:
            return {409, order.resumes ? "not_released" : "already_released"};
        case SH_ERROR_BUSY:
            return {409, "busy"};
        case SH_ERROR_CALLBACK:
            return {409, "refused"};
        case SH_ERROR_UNSUPPORTED:
            return {500, "unsupported"};
        case SH_ERROR_BUDGET:
            return {500, "budget"};
        case SH_ERROR_OUT_OF_DEVICE_MEMORY:
            return {500, "out_of_device_memory"};
        case SH_ERROR_OUT_OF_HOST_MEMORY:
            return {500, "out_of_host_memory"};
        case SH_ERROR_INVALID_HANDLE:
            return {500, "device_closed"};
        default:
            return {500, "failed"};
    }
}

bool any_runs_not(const std::vector<sh_occupancy_info>& tags) {
    return std::any_of(tags.begin(), tags.end(), [](const auto& tag) { return tag.state != SH_OCCUPANCY_RUNNING; });
}

// No tag is left for an order that names none: the caller learns whether that is what it takes it for.
bool came_too_late(const Order& order, const sh_occupancy_change& change, const std::vector<sh_occupancy_info>& found) {
    if (order.if_needed || change.tag_count) return false;
    return order.resumes || !found.empty();
}

std::string line(const JsonText& json) { return json.text() + "\n"; }

std::string summary(const Order& order, const sh_occupancy_change& change) {
    const std::string verb = order.resumes ? "resumed" : "released";
    if (!change.tag_count) return "nothing to do";
    return verb + " " + std::to_string(change.tag_count) + (change.tag_count == 1 ? " tag, " : " tags, ") +
           std::to_string(change.device_bytes) + " bytes of device memory";
}

void add(JsonText& json, const sh_occupancy_info& info) {
    json.add("state", state_name(info.state));
    for (const TagFigure& figure : kTagFigures) json.add(figure.name, info.*figure.value);
}

}  // namespace

const char* state_name(uint32_t state) {
    constexpr const char* kNames[] = {"running", "releasing", "released", "resuming", "mixed", "lost"};
    return state < std::size(kNames) ? kNames[state] : "unknown";
}

Answer failure(unsigned status, const char* error, std::string_view message) {
    JsonText json;
    json.begin_object();
    json.add("success", false).add("changed", false).add("error", error).add("message", message);
    json.end_object();
    Answer answer;
    answer.status = status;
    answer.body = line(json);
    return answer;
}

Answer unauthorized() {
    return failure(401, "unauthorized",
                   "the request has no header \"Authorization: Bearer <token>\" with the right token");
}

Answer unknown_path(std::string_view target) {
    constexpr size_t kMost = 80;
    const std::string path(target.substr(0, std::min(target.find('?'), kMost)));
    return failure(404, "not_found",
                   "there is no path " + path +
                       "; the paths are /release_memory_occupation, /resume_memory_occupation, /memory, /metrics, "
                       "/sleep, /wake_up, /is_sleeping and /snapshot");
}

Answer no_device(const Route& route) {
    return failure(404, "no_device",
                   std::string(route.path) + " is for the control of a device, and this one has none");
}

Answer wrong_method(const Route& route, std::string_view method) {
    Answer answer =
        failure(405, "method_not_allowed",
                std::string(route.path) + " takes " + route.methods + ", not " + std::string(method.substr(0, 20)));
    answer.allow = route.methods;
    return answer;
}

Answer malformed(const Status& why) { return failure(400, "bad_request", why.text()); }

Answer answer_to(const Order& order, const Status& result, const sh_occupancy_change& change,
                 const std::vector<sh_occupancy_info>& found) {
    if (!result.ok()) {
        const Kind kind = kind_of(order, result.code());
        return failure(kind.status, kind.error, result.text());
    }
    if (came_too_late(order, change, found)) {
        return order.resumes ? failure(409, "not_released", "no tag is released")
                             : failure(409, "already_released", "all tags are released already");
    }
    JsonText json;
    json.begin_object();
    json.add("success", true)
        .add("changed", change.tag_count != 0)
        .add("is_sleeping", any_runs_not(found))
        .add("message", summary(order, change))
        .add("tag_count", change.tag_count)
        .add("device_bytes", change.device_bytes)
        .add("copied_bytes", change.copied_bytes)
        .add("unchanged_bytes", change.unchanged_bytes)
        .add("seconds", static_cast<double>(change.ns) / 1e9);
    json.end_object();
    Answer answer;
    answer.body = line(json);
    return answer;
}

Answer unreadable(const Status& why) {
    return failure(500, why.code() == SH_ERROR_INVALID_HANDLE ? "device_closed" : "failed", why.text());
}

Answer is_sleeping(const sh_occupancy_info& total) {
    JsonText json;
    json.begin_object();
    json.add("is_sleeping", total.state != SH_OCCUPANCY_RUNNING);
    json.end_object();
    Answer answer;
    answer.body = line(json);
    return answer;
}

Answer memory_document(const Figures& figures) {
    JsonText json;
    json.begin_object();
    json.add("device", std::string_view(figures.device));
    json.add("is_sleeping", figures.total.state != SH_OCCUPANCY_RUNNING);
    json.begin_array("tags");
    for (const sh_occupancy_info& tag : figures.tags) {
        json.begin_object();
        json.add("tag", tag.tag);
        add(json, tag);
        json.end_object();
    }
    json.end_array();
    json.begin_object("total");
    add(json, figures.total);
    json.end_object();
    json.begin_object("device_memory");
    for (const telemetry::DeviceFigure& figure : telemetry::kDeviceFigures)
        json.add(figure.name, figures.memory.*figure.value);
    json.end_object();
    json.end_object();
    Answer answer;
    answer.body = line(json);
    return answer;
}

}  // namespace stagehand::control
