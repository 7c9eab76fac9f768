// The plan of a training step as tables and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "memory_picture.h"
#include "options.h"
#include "terminal.h"
#include "training/transformer.h"

namespace stagehand::cli {

// One way to make the step: plain, with checkpoints, or by the plan.
struct TrainingArm {
    MemoryLine memory;
    std::uint64_t kept_bytes = 0;
    std::uint64_t spilled_bytes = 0;
    std::uint64_t recomputed_bytes = 0;  // cheap ones, by the plan
    // No plan is faster at this peak. Checkpoints may be, because they also compute products of matrices again.
    std::uint64_t bound_ns = 0;
};

struct TrainingReport {
    std::string model;  // "16 layers, ..."
    training::Shape shape;
    training::Rates rates;
    std::string dtype;
    std::string device;  // empty: the link is given
    std::uint64_t to_host_bytes_per_second = 0;
    std::uint64_t to_device_bytes_per_second = 0;
    bool memory_bandwidth_given = false;
    std::uint64_t target_peak_bytes = 0;  // 0: a target for the time
    std::uint64_t target_step_ns = 0;
    bool meets_target = false;
    std::uint64_t least_peak_bytes = 0;  // with a target for the time: no choice has a lower peak
    TrainingArm plain;
    TrainingArm checkpointed;
    TrainingArm planned;
};

std::string json_text(const TrainingReport& report);
std::string table_text(const TrainingReport& report, const Terminal& terminal);

}  // namespace stagehand::cli
