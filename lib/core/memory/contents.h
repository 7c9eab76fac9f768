// Contents: the only owner of the record which pages hold whose bytes, whether all bytes of a unit are present, and
// what must have ended before pages are written. Other classes ask Contents, and tell it what happened.
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
#include "transfer/route/command.h"

namespace stagehand::core {

// What keeps a load from writing its pages now. The answer holds only at this moment. A caller that gives up the mutex
// asks again.
struct Obstacle {
    enum Kind {
        none,
        updating,  // the unit's own source is being changed
        held,      // a view holds the bytes that lie in the pages
        loading,   // workers load the bytes that lie in the pages
        dirty,     // the bytes that lie in the pages are newer than their source
        writing,   // workers write the bytes that lie in the pages to their source
    };
    Kind kind = none;
    uint32_t unit = kNone;  // the unit in the way, or the unit itself if its own load or write-back is
};

// The caller holds the runtime's mutex in all methods. They never give it up.
class Contents {
public:
    Contents(BackendDevice& device, Registry& registry, Ring& ring, StreamTable& streams, EventPool& events)
        : device_(device), registry_(registry), ring_(ring), streams_(streams), events_(events) {}
    ~Contents();

    // What keeps the unit's load from beginning: the unit's own state, or the bytes that lie in its streamed pages.
    Obstacle in_the_way(const Unit& unit) const;
    // What keeps the whole ring from being written.
    Obstacle in_the_ring() const;
    // What keeps other units from writing the streamed pages of the unit `there`.
    Obstacle::Kind protects(const Unit& there) const;

    // Appends the events after which pages [own_from, own.size()) and each run of streamed pages may be written. These
    // events stand for all uses, on all streams, of the bytes that lie there and of the unit's source.
    Status find_fences(const Unit& unit, uint32_t own_from, std::span<const policy::PageRun> runs,
                       std::vector<sh_backend_event>* waits, transfer::Waits* own_waits,
                       std::vector<transfer::Waits>* run_waits);

    // Whether a load that writes these pages may write them beside an earlier load: nobody has waited for that one, so
    // no event of find_fences() comes after it.
    bool writes_unseen(const Unit& unit, uint32_t own_from, std::span<const policy::PageRun> runs);
    // The unit's load has ended.
    void seen(Unit& unit) { unit.unseen_ = false; }
    // A stream waits for the unit's load. The event of a release on this stream comes after the load.
    void waits(Unit& unit, sh_stream stream) { unit.waits_ = stream; }
    void released(Unit& unit, sh_stream stream) {
        if (!unit.load_ || (stream != SH_STREAM_HOST && stream == unit.waits_)) unit.unseen_ = false;
    }

    // A load begins. From here on, these streamed pages and the missing pages of the unit's own count as the unit's.
    void take(Unit& unit, Load& load, std::span<const policy::PageRun> runs);
    // Workers have parts of the load, or have none any more.
    void queue(Unit& unit, bool queued) { unit.load_queued_ = queued; }
    // The load's copies are queued on the device after all events of find_fences(). A later writer of these pages waits
    // only for this unit's uses.
    void issued(Unit& unit, std::span<const policy::PageRun> runs);
    // The load failed or was cancelled, so its bytes are undefined. The fences stay as they were, so the next load
    // waits for the same uses.
    void fail(Unit& unit, uint32_t own_from, std::span<const policy::PageRun> runs);
    // The load is over, whether or not it succeeded.
    void end_load(Unit& unit);

    // The stream may use the unit's memory until the work that is queued on it now has ended. `at_once`: the event is
    // recorded now, because no step end will record it.
    Status note_use(Unit& unit, sh_stream stream, bool at_once);
    // The last view of a use was released. `streams`: bits of the stream table.
    void note_release(Unit& unit, uint64_t streams) noexcept {
        unit.used_streams_ |= streams;
        unit.last_use_ = ++releases_;
    }
    // The engine is about to destroy the stream. Waits for its work.
    Status forget_stream(sh_stream stream);
    // The unit is gone, and nothing waits for its uses any more.
    void leave(Unit& unit) noexcept;
    // The units are gone. Nothing of them lies in the ring.
    template <class IsGone>
    void forget(IsGone is_gone) {
        ring_.forget(is_gone);
    }
    // The member `next` of a set gets the slot of the member `last`, which leaves it with its bytes. What is written
    // there from now on comes after all uses of `last`, and after its load, which may be under way.
    void take_turns(Unit& last, Unit& next) noexcept;
    // All uses of the unit have ended.
    void forget_uses(Unit& unit) { unit.used_streams_ = 0; }

    // Forgets that the unit's bytes are on the device, because nobody needs them any more. Its pages and their fences
    // stay.
    void drop(Unit& unit);
    // The unit's bytes are out of date.
    void spoil(Unit& unit) { hinder(unit, kStale, true); }

    // The unit's memory has changed. own_changed(): the unit has other pages of its own now, and the first `valid` of
    // them keep their contents. ring_changed(): it has other streamed pages, which hold none of its bytes.
    void own_changed(Unit& unit, uint32_t valid);
    void ring_changed(Unit& unit);

    // The unit's streamed page holds, or will hold, bytes of the unit.
    bool is_in_ring(const Unit& unit, uint32_t page) const {
        return ring_.page_of(unit, page).contents == registry_.index_of(unit);
    }

    // So that take_over() cannot fail.
    void expect_launch() { ring_.expect_launch(); }
    // A launch of a graph fills the ring. When `done` has come, each page holds the bytes of the unit that `ring` names
    // for it. `done` is 0 if that is so already. `streams`: the streams that the launch runs on.
    void take_over(std::span<const uint32_t> ring, std::span<const uint32_t> units, sh_backend_event done,
                   uint64_t streams);
    // The bytes that launches up to `done` load are present.
    void arrived(Unit& unit, sh_backend_event done);
    // The events of launches that may still use the ring.
    const std::vector<sh_backend_event>& launches() const { return ring_.launches(); }
    // The event has come, and is not used any more.
    void forget_launch(sh_backend_event done);

private:
    void hinder(Unit& unit, Hindrance why, bool on) { registry_.hinder(unit, why, on); }
    void count_pages(Unit& unit);  // sets or clears kMissing

    BackendDevice& device_;
    Registry& registry_;
    Ring& ring_;
    StreamTable& streams_;
    EventPool& events_;
    uint64_t releases_ = 0;
};

}  // namespace stagehand::core
