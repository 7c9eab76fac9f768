// Changes: what differs between the device and the sources because the engine has changed it: what is dirty, what is on its way back, and
// which sources are being changed. The one owner of that. A block is clean, dirty, being written (and may be dirty again meanwhile), and
// clean once more, or dirty where that failed.
#pragma once

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/device/event_pool.h"
#include "core/memory/registry.h"

namespace stagehand::core {

// All methods are called with the runtime's mutex held, and never give it up.
class Changes {
public:
    Changes(BackendDevice& device, Registry& registry, EventPool& events) : device_(device), registry_(registry), events_(events) {}
    ~Changes();

    // The engine changes, or will change, what it holds of the block.
    void mark(Block& block);
    // What it has changed of the block is void: it is not dirty any more. What is being written now is on its way all the same.
    void forget(Block& block);
    // The block's source is being changed, from here to there. Nothing happens where it is, or is not, already.
    void begin_update(Block& block);
    void end_update(Block& block);

    enum class Part { ring, all };
    bool is_dirty(const Unit& unit, Part part = Part::all) const;
    // Something of it is dirty, or on its way.
    bool is_changed(const Unit& unit) const;

    // A write-back of what is dirty and not held begins: from here on it counts as being written. False: there is none.
    bool begin(Unit& unit, Part part);
    // The event that stands for it.
    Status take_event(Unit& unit);
    // The device was told to read the unit's bytes; until `written_back` it may write pinned sources. `by_workers`: workers go on from here.
    void reads(Unit& unit, bool by_workers);
    // Workers have recorded `written_back`.
    void read(Unit& unit) { unit.writing_ = Writing::read; }
    // It has come to its end. What failed is dirty again.
    void end(Unit& unit, bool succeeded);
    // Whoever uses the unit next need not wait for what reads it.
    void followed(Unit& unit) { registry_.hinder(unit, kBeingRead, false); }
    // The unit is gone, and nothing waits for its write-back any more.
    void leave(Unit& unit) noexcept { events_.give(&unit.written_back_); }
    // Whether the device has written all that it was told to write to the unit's sources.
    bool has_landed(Unit& unit);

private:
    void find_dirt(Unit& unit);

    BackendDevice& device_;
    Registry& registry_;
    EventPool& events_;
};

}  // namespace stagehand::core
