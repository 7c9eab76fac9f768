#include "core/memory/contents.h"

#include <algorithm>
#include <utility>

namespace stagehand::core {

Contents::~Contents() {
    for (Unit& unit : registry_.units()) leave(unit);
}

void Contents::leave(Unit& unit) noexcept {
    for (UnitUse& use : unit.uses_) events_.give(&use.event);
    unit.uses_.clear();
}

Obstacle::Kind Contents::protects(const Unit& there) const {
    if (there.held) return Obstacle::held;
    if (there.load_queued_) return Obstacle::loading;
    if (there.writing_ != Writing::none) return Obstacle::writing;
    return there.dirty() ? Obstacle::dirty : Obstacle::none;
}

Obstacle Contents::in_the_way(const Unit& unit) const {
    const uint32_t self = registry_.index_of(unit);
    if (unit.updating()) return {Obstacle::updating, self};
    if (unit.load_queued_) return {Obstacle::loading, self};
    if (unit.writing_ != Writing::none) return {Obstacle::writing, self};
    uint32_t last = self;
    for (uint32_t k = 0; k < unit.ring_pages; k++) {
        const uint32_t contents = ring_.page_of(unit, k).contents;
        if (contents == last || contents == kNone || contents == self) continue;
        last = contents;
        if (const Obstacle::Kind kind = protects(registry_.unit(contents)); kind != Obstacle::none)
            return {kind, contents};
    }
    return {};
}

Obstacle Contents::in_the_ring() const {
    uint32_t last = kNone;
    for (uint32_t page = 0; page < ring_.size(); page++) {
        const uint32_t contents = ring_.page(page).contents;
        if (contents == last || contents == kNone) continue;
        last = contents;
        if (const Obstacle::Kind kind = protects(registry_.unit(contents)); kind != Obstacle::none)
            return {kind, contents};
    }
    return {};
}

Status Contents::find_fences(const Unit& unit, uint32_t own_from, std::span<const policy::PageRun> runs,
                             std::vector<sh_backend_event>* waits, transfer::Waits* own_waits,
                             std::vector<transfer::Waits>* run_waits) {
    // Only the unit's own earlier uses can be in the way of its own pages, when contents that were there are loaded
    // again. A source that is being written must have all its bytes before it is read.
    // A member's slot had others before, whose uses have events.
    if (own_from < unit.own.size() && !unit.is_member()) SH_TRY(streams_.append_events(unit.used_streams_, waits));
    if (unit.is_member())
        for (const UnitUse& use : unit.uses_) waits->push_back(use.event);
    if (unit.written_back_) waits->push_back(unit.written_back_);
    *own_waits = {0, static_cast<uint32_t>(waits->size())};
    if (!runs.empty())
        std::erase_if(ring_.launches(), [this](sh_backend_event event) {
            uint32_t done = 0;
            return device_.event_query(event, &done).ok() && done;
        });
    for (const policy::PageRun& run : runs) {
        const uint32_t first = static_cast<uint32_t>(waits->size());
        const auto push = [&](sh_backend_event event) {
            if (event && std::find(waits->begin() + first, waits->end(), event) == waits->end())
                waits->push_back(event);
        };
        push(unit.written_back_);
        for (const sh_backend_event launch : ring_.launches()) push(launch);
        each_fence(
            run, [&](uint32_t k) -> const Ring::Page& { return ring_.page_of(unit, k); },
            [&](uint32_t fence) {
                const Unit& of = registry_.unit(fence);
                for (const UnitUse& use : of.uses_) push(use.event);
                push(of.written_back_);
            });
        run_waits->push_back({first, static_cast<uint32_t>(waits->size()) - first});
    }
    return Status();
}

bool Contents::writes_unseen(const Unit& unit, uint32_t own_from, std::span<const policy::PageRun> runs) {
    bool unseen = own_from < unit.own.size() && unit.unseen_;
    for (const policy::PageRun& run : runs)
        each_fence(
            run, [&](uint32_t k) -> const Ring::Page& { return ring_.page_of(unit, k); },
            [&](uint32_t fence) { unseen = unseen || registry_.unit(fence).unseen_; });
    return unseen;
}

void Contents::take(Unit& unit, Load& load, std::span<const policy::PageRun> runs) {
    const uint32_t self = registry_.index_of(unit);
    for (const policy::PageRun& run : runs) {
        for (uint32_t k = run.first; k < run.first + run.pages; k++) {
            Ring::Page& at = ring_.page_of(unit, k);
            if (at.contents == self) continue;
            if (at.contents != kNone) {
                Unit& loser = registry_.unit(at.contents);
                loser.ring_present_--;
                hinder(loser, kMissing, true);
            }
            at.contents = self;
            unit.ring_present_++;
        }
    }
    unit.own_valid_ = static_cast<uint32_t>(unit.own.size());
    unit.serial_++;
    unit.unseen_ = true;
    unit.waits_ = SH_STREAM_HOST;
    unit.load_ = &load;
    hinder(unit, kLoading, true);
    count_pages(unit);
}

// The unit's earlier uses stay recorded: they may still read pages that were not loaded again.
void Contents::issued(Unit& unit, std::span<const policy::PageRun> runs) {
    const uint32_t self = registry_.index_of(unit);
    for (const policy::PageRun& run : runs)
        for (uint32_t k = run.first; k < run.first + run.pages; k++) ring_.page_of(unit, k).fence = self;
}

void Contents::fail(Unit& unit, uint32_t own_from, std::span<const policy::PageRun> runs) {
    const uint32_t self = registry_.index_of(unit);
    unit.own_valid_ = std::min(unit.own_valid_, own_from);
    for (const policy::PageRun& run : runs) {
        for (uint32_t k = run.first; k < run.first + run.pages; k++) {
            Ring::Page& at = ring_.page_of(unit, k);
            if (at.contents != self) continue;
            at.contents = kNone;
            unit.ring_present_--;
        }
    }
    count_pages(unit);
}

void Contents::end_load(Unit& unit) {
    unit.load_ = nullptr;
    hinder(unit, kLoading, false);
}

void Contents::count_pages(Unit& unit) {
    const bool all_there = unit.own_valid_ == unit.own.size() && unit.ring_present_ == unit.ring_pages;
    // A free record has no pages, and does not count as complete.
    hinder(unit, kMissing, !(unit.live && all_there && unit.own.size() + unit.ring_pages == unit.pages));
}

Status Contents::note_use(Unit& unit, sh_stream stream, bool at_once) {
    uint32_t number = 0;
    if (unit.takes_turns() || at_once) SH_TRY(streams_.check_no_capture(stream));
    SH_TRY(streams_.number(stream, &number));
    streams_.mark(number);
    unit.used_streams_ |= uint64_t(1) << number;
    if (at_once) SH_TRY(streams_.record(number));
    if (!unit.takes_turns()) return Status();
    auto& uses = unit.uses_;
    auto use = std::find_if(uses.begin(), uses.end(), [&](const UnitUse& u) { return u.stream == stream; });
    if (use == uses.end()) {  // take the place of a forgotten stream
        use = std::find_if(uses.begin(), uses.end(), [](const UnitUse& u) { return u.stream == SH_STREAM_HOST; });
        for (auto done = uses.begin(); use == uses.end() && done != uses.end(); ++done) {  // or of a use that is over
            uint32_t over = 0;
            if (device_.event_query(done->event, &over).ok() && over) use = done;
        }
        if (use != uses.end()) use->stream = stream;
    }
    if (use == uses.end()) {
        uses.reserve(uses.size() + 1);
        sh_backend_event event = 0;
        SH_TRY(events_.take(&event));
        use = uses.insert(uses.end(), {stream, event});
    }
    return device_.event_record(use->event, stream);
}

Status Contents::forget_stream(sh_stream stream) {
    SH_TRY(streams_.forget(stream));
    // The event stays with the unit, because a staged load may still wait for it later.
    for (Unit& unit : registry_.units())
        for (UnitUse& use : unit.uses_)
            if (use.stream == stream) use.stream = SH_STREAM_HOST;
    return Status();
}

void Contents::drop(Unit& unit) {
    const uint32_t self = registry_.index_of(unit);
    for (uint32_t k = 0; k < unit.ring_pages; k++) {
        Ring::Page& at = ring_.page_of(unit, k);
        if (at.contents == self) at.contents = kNone;
    }
    unit.ring_present_ = unit.own_valid_ = 0;
    hinder(unit, kStale, false);
    count_pages(unit);
}

void Contents::take_turns(Unit& last, Unit& next) noexcept {
    std::swap(last.uses_, next.uses_);
    next.used_streams_ |= std::exchange(last.used_streams_, 0);
    next.unseen_ = std::exchange(last.unseen_, false);
    drop(last);
}

void Contents::own_changed(Unit& unit, uint32_t valid) {
    unit.own_valid_ = std::min(unit.own_valid_, valid);
    count_pages(unit);
}

void Contents::ring_changed(Unit& unit) {
    unit.ring_present_ = 0;
    count_pages(unit);
}

void Contents::take_over(std::span<const uint32_t> ring, std::span<const uint32_t> units, sh_backend_event done,
                         uint64_t streams) {
    if (done) ring_.launched(done);
    for (uint32_t page = 0; page < ring_.size(); page++) {
        Ring::Page& at = ring_.page(page);
        if (at.contents == kNone) continue;
        Unit& before = registry_.unit(at.contents);
        before.ring_present_ = 0;
        count_pages(before);
    }
    for (uint32_t page = 0; page < ring_.size(); page++) {
        ring_.page(page) = {ring[page], ring[page]};
        if (ring[page] != kNone) registry_.unit(ring[page]).ring_present_++;
    }
    for (const uint32_t index : units) {
        Unit& unit = registry_.unit(index);
        unit.used_streams_ |= streams;
        if (!unit.ring_pages) continue;
        count_pages(unit);
        unit.arrives_ = done;
        hinder(unit, kArriving, done != 0);
        unit.serial_++;
    }
}

void Contents::arrived(Unit& unit, sh_backend_event done) {
    if (unit.arrives_ != done) return;
    unit.arrives_ = 0;
    hinder(unit, kArriving, false);
}

void Contents::forget_launch(sh_backend_event done) {
    ring_.forget_launch(done);
    for (Unit& unit : registry_.units()) arrived(unit, done);
}

}  // namespace stagehand::core
