#include "control/metrics.h"

#include "telemetry/json_text.h"

namespace stagehand::control {
namespace {

// Writes families: their two lines of comment, then their samples.
class MetricsText {
public:
    explicit MetricsText(const std::string& device) : device_("device=" + label(device)) {}

    void family(const char* name, const char* type, const char* help) {
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
    const char* name_ = "";
    std::string text_;
};

struct TagFigure {
    const char* name;
    const char* type;
    const char* help;
    uint64_t sh_occupancy_info::*value;
};

constexpr TagFigure kTagFigures[] = {
    {"stagehand_tag_allocations", "gauge", "Allocations of a tag.", &sh_occupancy_info::allocations},
    {"stagehand_tag_bytes", "gauge", "Sizes of a tag's allocations, as the engine asked for them.",
     &sh_occupancy_info::bytes},
    {"stagehand_tag_device_bytes", "gauge", "Device memory that a tag holds.", &sh_occupancy_info::device_bytes},
    {"stagehand_tag_staged_bytes", "gauge", "Contents of a tag that only host memory or a file has.",
     &sh_occupancy_info::staged_bytes},
    {"stagehand_tag_host_bytes", "gauge", "Host memory that is kept for a tag's contents.",
     &sh_occupancy_info::host_bytes},
    {"stagehand_tag_pinned_bytes", "gauge", "The pinned part of a tag's host memory.",
     &sh_occupancy_info::pinned_bytes},
    {"stagehand_tag_file_bytes", "gauge", "The part of a tag's contents that a file holds.",
     &sh_occupancy_info::file_bytes},
    {"stagehand_tag_cycles_total", "counter", "How often a tag came back.", &sh_occupancy_info::cycles},
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
        text.family(figure.name, figure.type, figure.help);
        for (const sh_occupancy_info& tag : figures.tags) text.sample(tag.*figure.value, tag_label(tag));
    }
}

void add_device(MetricsText& text, const sh_memory_info& memory) {
    text.single("stagehand_device_budget_bytes", "gauge", "The budget in force.", memory.budget_bytes);
    text.single("stagehand_device_used_bytes", "gauge", "Device memory that the library holds.", memory.used_bytes);
    text.single("stagehand_device_peak_bytes", "gauge", "The most device memory that the library ever held.",
                memory.peak_bytes);
    text.single("stagehand_device_free_bytes", "gauge", "Free memory of the device, as the driver reports it.",
                memory.free_bytes);
    text.single("stagehand_device_size_bytes", "gauge", "Size of the device's memory.", memory.total_bytes);
    text.single("stagehand_host_staging_bytes", "gauge", "Host memory that the library holds for staging.",
                memory.staging_bytes);
    text.single("stagehand_host_pinned_bytes", "gauge", "The pinned part of the library's host memory.",
                memory.pinned_bytes);
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
    add_device(text, figures.memory);
    text.single("stagehand_control_requests_total", "counter", "Requests that were answered.", counters.requests);
    text.single("stagehand_control_failures_total", "counter", "Answers with a status of 400 or more.",
                counters.failures);
    Answer answer;
    answer.content_type = "text/plain; version=0.0.4; charset=utf-8";
    answer.body = text.take();
    return answer;
}

}  // namespace stagehand::control
