// The state of a process at one moment, and the rates since the sample before.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "json_output.h"

namespace stagehand::cli {

// A runtime. Rates are by the device's clock. They are missing if there is no sample before, or if no time has passed.
struct RuntimeSample {
    std::string name;
    std::uint64_t id = 0;
    std::uint64_t clock_ns = 0;
    bool lost = false;
    std::uint64_t steps = 0, hits = 0, misses = 0, bytes_to_device = 0, host_waits = 0, stall_ns = 0;
    std::uint64_t resident_bytes = 0, ring_bytes = 0, unordered_bytes = 0, held_bytes = 0, share_bytes = 0;
    std::uint64_t protected_bytes = 0, reserved_bytes = 0, guest_bytes = 0, given_up_bytes = 0;

    std::optional<double> steps_per_second, hits_per_second, misses_per_second, stalls_per_second;
    std::optional<double> bytes_per_second;  // to the device
    std::optional<double> link_share;        // the share of the link's speed
    std::optional<double> stall_share;       // the share of the time, summed over threads
};

struct DeviceSample {
    std::string name;
    std::string problem;               // the reason why its memory could not be read
    double link_bytes_per_second = 0;  // 0: not known
    std::uint64_t budget_bytes = 0, used_bytes = 0, free_bytes = 0, total_bytes = 0;
    std::uint64_t reserved_bytes = 0, guest_bytes = 0, protected_bytes = 0, headroom_bytes = 0;
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

}  // namespace stagehand::cli
