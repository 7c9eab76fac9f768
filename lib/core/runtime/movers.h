// Movers: what moves the bytes of a runtime's blocks to the device and back.
#pragma once

#include "core/memory/model_memory.h"
#include "core/movement/loader.h"
#include "core/movement/write_back.h"
#include "core/runtime/gate.h"

namespace stagehand::core {

struct Movers {
    Movers(Device& device, transfer::Carrier& carrier, ModelMemory& model, Gate& calls)
        : memory(model),
          gate(calls),
          loader(device, carrier, memory.unpack_memory.unpacker(), memory.registry, memory.ring, memory.contents,
                 memory.changes, memory.events, gate.mutex(), gate.changed(), gate.stats(), gate.name()),
          write_back(device, memory.registry, memory.changes, memory.streams, gate.mutex(), gate.changed(),
                     gate.stats(), gate.name()) {}

    Status open(Device& device);
    // Returns the failure of a write-back that nobody waited for, or of a load that was believed, once.
    Status take_failure();
    // Writes all changes of the engine back, and waits for that. The mutex is given up.
    Status flush_all(Lock& lock);
    // Waits on the host until all work that was begun has ended, so that mappings may change.
    Status quiesce(Lock& lock);
    // Waits for what was begun. The mutex is given up, so that more may begin meanwhile.
    Status synchronize(Lock& lock);
    // Makes the stream wait for all work that the runtime has under way on the device.
    Status order_before(sh_stream stream);

    ModelMemory& memory;
    Gate& gate;
    Loader loader;
    WriteBack write_back;
};

}  // namespace stagehand::core
