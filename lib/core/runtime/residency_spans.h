// ResidencySpans: the times since when a runtime is kept, reserved for, or a guest. They are for the trace.
#pragma once

#include <array>
#include <cstdint>

#include "core/memory/model_memory.h"
#include "core/runtime/gate.h"
#include "telemetry/trace.h"

namespace stagehand::core {

class ResidencySpans {
public:
    explicit ResidencySpans(Gate& gate, ModelMemory& memory) : gate_(gate), memory_(memory) {}

    void begin(telemetry::Residency how);
    void end(telemetry::Residency how, uint64_t bytes);

private:
    Gate& gate_;
    ModelMemory& memory_;
    std::array<uint64_t, 3> since_ns_ = {};  // by telemetry::Residency; 0: no span is open
};

}  // namespace stagehand::core
