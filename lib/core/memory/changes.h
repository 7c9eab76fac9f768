// Changes: the only owner of the engine's changes, by which the device differs from the sources. It knows which blocks
// are dirty, which are on their way back, and which sources are being changed. A block is clean, dirty, or being
// written. It may become dirty again while it is written. After the write-back it is clean, or dirty if the write-back
// failed.
#pragma once

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/device/event_pool.h"
#include "core/memory/registry.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods. They never give it up.
class Changes {
public:
    Changes(BackendDevice& device, Registry& registry, EventPool& events)
        : device_(device), registry_(registry), events_(events) {}
    ~Changes();

    // The engine changes the bytes of the block that it holds, or will change them.
    void mark(Block& block);
    // The engine's changes of the block are void, so it is not dirty any more. A write-back that is under way goes on.
    void forget(Block& block);
    // begin_update() and end_update() enclose a change of the block's source. A repeated call does nothing.
    void begin_update(Block& block);
    void end_update(Block& block);

    void step_ends() { step_++; }
    // Some unit may recur().
    bool any() const;
    // Before a step: the engine has changed the unit in two of the last eight steps, so that it will again. `recurred`:
    // that was so before, and is so until no step of 16 has changed it.
    bool recur(const Unit& unit, bool recurred) const;

    enum class Part { ring, all };
    bool is_dirty(const Unit& unit, Part part = Part::all) const;
    // Some bytes of the unit are dirty or on their way.
    bool is_changed(const Unit& unit) const;

    // Begins a write-back of the dirty blocks that are not held. From here on they count as being written. Returns
    // false if there are none.
    bool begin(Unit& unit, Part part);
    // Takes the event that stands for the write-back.
    Status take_event(Unit& unit);
    // The device was told to read the unit's bytes. It may write pinned sources until `written_back` has come.
    // `by_workers`: workers go on from here.
    void reads(Unit& unit, bool by_workers);
    // Workers have recorded `written_back`.
    void read(Unit& unit) { unit.writing_ = Writing::read; }
    // The write-back has ended. Its bytes are dirty again if it failed.
    void end(Unit& unit, bool succeeded);
    // The next user of the unit need not wait for the write-back that reads it.
    void followed(Unit& unit) { registry_.hinder(unit, kBeingRead, false); }
    // The unit is gone, and nothing waits for its write-back any more.
    void leave(Unit& unit) noexcept { events_.give(&unit.written_back_); }
    // The device has written all that it was told to write to the unit's sources.
    bool has_landed(Unit& unit);

private:
    // Counts along, because a unit may have very many blocks.
    void set_dirty(Unit& unit, Block& block, bool own, bool ring);

    BackendDevice& device_;
    Registry& registry_;
    EventPool& events_;
    static constexpr uint32_t kMemory = 32;  // steps
    bool any_ = false;
    uint32_t step_ = 0, marked_in_ = 0;  // the step under way or next, and the last one with a change
};

}  // namespace stagehand::core
