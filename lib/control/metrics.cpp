#include "control/metrics.h"

#include <algorithm>

#include "telemetry/figures.h"
#include "telemetry/json_text.h"

namespace stagehand::control {
namespace {

// Writes families: their two lines of comment, then their samples.
class MetricsText {
public:
    explicit MetricsText(const std::string& device) : device_("device=" + label(device)) {}

    void family(const std::string& name, const char* type, const char* help) {
        name_ = name;
        (((text_ += "# HELP ") += name) += ' ') += help;
        ((((text_ += "\n# TYPE ") += name) += ' ') += type) += '\n';
    }
    void sample(uint64_t value, const std::string& labels = "") {
        (text_ += name_) += '{';
        text_ += device_;
        if (!labels.empty()) (text_ += ',') += labels;
        ((text_ += "} ") += std::to_string(value)) += '\n';
    }
    void single(const char* name, const char* type, const char* help, uint64_t value) {
        family(name, type, help);
        sample(value);
    }
    std::string take() { return std::move(text_); }

private:
    const std::string device_;
    std::string name_;
    std::string text_;
};

constexpr uint32_t kStates[] = {SH_OCCUPANCY_RUNNING,  SH_OCCUPANCY_RELEASING, SH_OCCUPANCY_RELEASED,
                                SH_OCCUPANCY_RESUMING, SH_OCCUPANCY_MIXED,     SH_OCCUPANCY_LOST};

std::string tag_label(const sh_occupancy_info& tag) { return "tag=" + label(tag.tag); }

void add_tags(MetricsText& text, const Figures& figures) {
    text.family("stagehand_tag_state", "gauge", "1 for the state that a tag is in, 0 for the others.");
    for (const sh_occupancy_info& tag : figures.tags)
        for (const uint32_t state : kStates)
            text.sample(tag.state == state, tag_label(tag) + ",state=" + label(state_name(state)));
    for (const TagFigure& figure : kTagFigures) {
        const std::string name = std::string("stagehand_tag_") + figure.name + (figure.counts ? "_total" : "");
        text.family(name, figure.counts ? "counter" : "gauge", figure.help);
        for (const sh_occupancy_info& tag : figures.tags) text.sample(tag.*figure.value, tag_label(tag));
    }
}

// Neither runtimes nor sets need have names of their own.
void add_sets(MetricsText& text, const Figures& figures) {
    const auto has_sets = [](const telemetry::RuntimeReading& runtime) { return !runtime.sets.empty(); };
    if (std::ranges::none_of(figures.runtimes, has_sets)) return;
    for (const telemetry::SetFigure& figure : telemetry::kSetFigures) {
        const bool counts = figure.in_line == telemetry::InLine::change;
        text.family(std::string("stagehand_set_") + figure.name + (counts ? "_total" : ""),
                    counts ? "counter" : "gauge", figure.help);
        for (const telemetry::RuntimeReading& runtime : figures.runtimes)
            for (const telemetry::SetReading& set : runtime.sets)
                text.sample(set.info.*figure.value,
                            "runtime=" + label(runtime.name) + ",runtime_id=" + label(std::to_string(runtime.id)) +
                                ",set=" + label(set.name) + ",set_id=" + label(std::to_string(set.set)));
    }
}

}  // namespace

std::string label(std::string_view text) {
    // The text of JSON has the same escapes for quotes, backslashes and newlines, once its other ones are out.
    std::string plain;
    for (const char c : text) plain += static_cast<unsigned char>(c) < 0x20 && c != '\n' ? '?' : c;
    telemetry::JsonText json;
    json.add(nullptr, std::string_view(plain));
    std::string quoted = json.text();
    for (size_t at; (at = quoted.find("\\u000a")) != std::string::npos;) quoted.replace(at, 6, "\\n");
    return quoted;
}

Answer metrics_document(const Figures& figures, const Counters& counters) {
    MetricsText text(figures.device);
    text.single("stagehand_sleeping", "gauge", "1 while any tag is not running.",
                figures.total.state != SH_OCCUPANCY_RUNNING);
    add_tags(text, figures);
    for (const telemetry::DeviceFigure& figure : telemetry::kDeviceFigures)
        text.single(figure.metric, "gauge", figure.help, figures.memory.*figure.value);
    add_sets(text, figures);
    text.single("stagehand_control_requests_total", "counter", "Requests that were answered.", counters.requests);
    text.single("stagehand_control_failures_total", "counter", "Answers with a status of 400 or more.",
                counters.failures);
    Answer answer;
    answer.content_type = "text/plain; version=0.0.4; charset=utf-8";
    answer.body = text.take();
    return answer;
}

}  // namespace stagehand::control
