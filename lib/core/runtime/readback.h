// Readback: copies the bytes of views to host memory, and compares them with the sources.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "core/runtime/movers.h"
#include "core/runtime/views.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods, and no capture is under way. They give it up.
class Readback {
public:
    Readback(Gate& gate, ModelMemory& memory, Movers& movers, Views& views)
        : gate_(gate), memory_(memory), movers_(movers), views_(views) {}

    Status read(sh_block id, sh_stream stream, uint64_t offset, void* buffer, uint64_t bytes, Lock& lock);
    // Reads the sources of a held block again, and compares them with what is on the device.
    Status verify(sh_block id, sh_stream stream, Lock& lock);

private:
    Status order_copies_after(const Block& block, sh_stream stream);
    Status can_verify(const Block& block) const;

    Gate& gate_;
    ModelMemory& memory_;
    Movers& movers_;
    Views& views_;
};

}  // namespace stagehand::core
