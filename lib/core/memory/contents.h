// Contents: whose bytes lie in which pages, whether all of a unit's are there, and what must have ended before pages are written. The
// one owner of that: others ask, and say what happened.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "core/device/event_pool.h"
#include "core/memory/registry.h"
#include "core/memory/ring.h"
#include "core/memory/stream_table.h"
#include "policy/pieces.h"

namespace stagehand::core {

// What keeps a load from writing its pages now. True at the moment of the question only: whoever gives up the mutex asks anew.
struct Obstacle {
    enum Kind {
        none,
        updating,   // the unit's own source is being changed
        held,       // somebody holds what lies there
        loading,    // workers bring what lies there
        dirty,      // what lies there is newer than its source
        writing,    // workers write it to its source
    };
    Kind kind = none;
    uint32_t unit = kNone;   // that is in the way; the unit itself where its own load or write-back is
};

// All methods are called with the runtime's mutex held, and never give it up.
class Contents {
public:
    // Events of a list that something must wait for.
    struct Waits {
        uint32_t first = 0, count = 0;
    };

    Contents(BackendDevice& device, Registry& registry, Ring& ring, StreamTable& streams, EventPool& events)
        : device_(device), registry_(registry), ring_(ring), streams_(streams), events_(events) {}
    ~Contents();

    // What keeps the unit's load from beginning: of itself, and of what lies in its streamed pages.
    Obstacle in_the_way(const Unit& unit) const;
    // What keeps the whole ring from being written.
    Obstacle in_the_ring() const;
    // What keeps the streamed pages of the unit `there` from being written by others.
    Obstacle::Kind protects(const Unit& there) const;

    // Appends the events after which pages [own_from, own.size()), and each run of streamed pages, may be written: all uses, on all streams,
    // of whatever lies there, and of the unit's source.
    Status find_fences(const Unit& unit, uint32_t own_from, std::span<const policy::PageRun> runs, std::vector<sh_backend_event>* waits,
                       Waits* own_waits, std::vector<Waits>* run_waits);

    // A load: these streamed pages, and what is missing of the unit's own, count as the unit's from here on.
    void take(Unit& unit, Load& load, std::span<const policy::PageRun> runs);
    // Workers have parts of it, or none any more.
    void queue(Unit& unit, bool queued) { unit.load_queued_ = queued; }
    // Its copies are queued on the device: who writes these pages next waits for this unit's uses.
    void issued(Unit& unit, std::span<const policy::PageRun> runs);
    // It failed, or was given up: what it was to bring is undefined. Fences stay as they were, so whoever comes next waits for the same uses.
    void fail(Unit& unit, uint32_t own_from, std::span<const policy::PageRun> runs);
    // It is over, however it ended.
    void end_load(Unit& unit);

    // The stream may use the unit's memory until what is queued on it now has ended. `at_once`: outside a step, where nobody records it later.
    Status note_use(Unit& unit, sh_stream stream, bool at_once);
    // The last view of a use was released; `streams`: bits of the table.
    void note_release(Unit& unit, uint64_t streams) noexcept {
        unit.used_streams_ |= streams;
        unit.last_use_ = ++releases_;
    }
    // A stream that is gone: what was queued on it has ended.
    void forget_stream(sh_stream stream);
    // The unit is gone, and nothing waits for its uses any more.
    void leave(Unit& unit) noexcept;
    // All uses of the unit have ended.
    void forget_uses(Unit& unit) { unit.used_streams_ = 0; }

    // Forgets that the unit's bytes are on the device; its pages and their fences stay. Nobody needs them any more.
    void drop(Unit& unit);
    // The unit's bytes are out of date.
    void spoil(Unit& unit) { hinder(unit, kStale, true); }

    // Memory: the unit has so many pages of its own now, of which the first `valid` keep what they hold; or other streamed pages, which hold
    // nothing of it.
    void own_changed(Unit& unit, uint32_t valid);
    void ring_changed(Unit& unit);

    // A launch of a graph leaves in each page of the ring what `ring` says, once `done` has come; `streams` are those that it runs on.
    void take_over(std::span<const uint32_t> ring, std::span<const uint32_t> units, sh_backend_event done, uint64_t streams);
    // What launches up to `done` bring is there.
    void arrived(Unit& unit, sh_backend_event done);

private:
    void hinder(Unit& unit, Hindrance why, bool on) { registry_.hinder(unit, why, on); }
    void count_pages(Unit& unit);   // whether any are missing

    BackendDevice& device_;
    Registry& registry_;
    Ring& ring_;
    StreamTable& streams_;
    EventPool& events_;
    uint64_t releases_ = 0;
};

}  // namespace stagehand::core
