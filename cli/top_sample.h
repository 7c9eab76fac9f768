// The state of a process at one moment, and the rates since the sample before.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "json_output.h"
#include "terminal.h"

namespace stagehand::cli {

// Figures by the names that they have in the document. Those that an older library does not send are 0.
class Figures {
public:
    Figures() = default;
    Figures(const Json& json, std::initializer_list<const char*> names);

    std::uint64_t operator[](const char* name) const { return values_.at(name); }

private:
    std::map<std::string, std::uint64_t> values_;
};

struct SetSample {
    std::string name;
    Figures figures;

    std::optional<double> uses_per_second, evictions_per_second;
    std::optional<double> hit_share;  // of the uses since the sample before
};

// A runtime. Rates are by the device's clock. They are missing if there is no sample before, or if no time has passed.
struct RuntimeSample {
    std::string name;
    bool lost = false;
    Figures figures;
    std::vector<SetSample> sets;

    std::optional<double> steps_per_second, hits_per_second, misses_per_second, stalls_per_second;
    std::optional<double> bytes_per_second;  // to the device
    std::optional<double> link_share;        // the share of the link's speed
    std::optional<double> stall_share;       // the share of the time, summed over threads
};

struct DeviceSample {
    std::string name;
    std::string problem;               // the reason why its memory could not be read
    double link_bytes_per_second = 0;  // 0: not known
    Figures figures;
    std::vector<RuntimeSample> runtimes;
    std::vector<RuntimeSample> unread;  // as last read: this sample could not read them

    std::optional<double> bytes_per_second;
    std::optional<double> link_share;
};

struct Sample {
    Json document;  // as received
    std::int64_t pid = 0;
    std::string program;
    std::string library;  // its version
    std::uint64_t busy = 0;
    std::vector<DeviceSample> devices;
};

// Throws CommandError if the text is not such a document, or has a version that this command does not support.
Sample parse_sample(const std::string& text, const std::string& process);

// Fills in the rates.
void compare(Sample& now, const Sample& before);

// The document with the rates added. `interval` is the time between the two samples in seconds.
Json with_rates(const Sample& sample, double interval);

// What `stagehand top` shows: a line about the process, a table of its devices, a table of its runtimes, and
// one of their sets if there are any.
std::string top_view(const Terminal& terminal, const Sample& sample);

}  // namespace stagehand::cli
