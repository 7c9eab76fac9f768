// Drops a unit outside the order, so that its memory can be used for anything.
#pragma once

#include <mutex>

#include "base/status.h"
#include "core/memory/model_memory.h"
#include "core/movement/loader.h"
#include "core/movement/write_back.h"

namespace stagehand::core {

// Waits until the unit's own copies and uses have ended, and calls `drop()`, which takes its memory away. Nothing
// happens if a caller holds or loads the unit meanwhile, or if `may()` returns false. The caller holds the runtime's
// mutex, which is given up while this waits. Everything is checked again after that.
template <class May, class Drop>
Status drop_unit(Unit& unit, ModelMemory& memory, Loader& loader, WriteBack& write_back,
                 std::unique_lock<std::mutex>& lock, May&& may, Drop&& drop) {
    while (unit.memory == Memory::unordered && !unit.held && !unit.bringing && may()) {
        if (unit.load_queued()) {
            loader.cancel(unit, lock);
        } else if (!loader.is_quiet(unit)) {
            SH_TRY(loader.wait_quiet(unit, lock));
        } else if (memory.changes.is_changed(unit) || !memory.changes.has_landed(unit)) {
            SH_TRY(write_back.flush(unit, lock));
        } else if (!memory.streams.are_over(unit.used_streams())) {
            SH_TRY(memory.streams.wait(unit.used_streams(), lock));
        } else {
            memory.contents.forget_uses(unit);
            SH_TRY(drop());
        }
    }
    return Status();
}

}  // namespace stagehand::core
