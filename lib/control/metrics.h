// The figures of a device in the text format of Prometheus. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "control/answers.h"

namespace stagehand::control {

// What a control has answered so far.
struct Counters {
    uint64_t requests = 0;
    uint64_t failures = 0;
};

Answer metrics_document(const Figures& figures, const Counters& counters);

// The value of a label, with quotes. Bytes that are not UTF-8 are replaced.
std::string label(std::string_view text);

}  // namespace stagehand::control
