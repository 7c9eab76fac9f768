#include "core/movement/capture.h"

#include <algorithm>

#include "base/no_throw.h"
#include "core/movement/missing.h"
#include "core/movement/on_load.h"

namespace stagehand::core {

Capture::Capture(BackendDevice& device, transfer::Lanes& lanes, Registry& registry, const Ring& ring,
                 UnpackMemory& unpack)
    : device_(device),
      lanes_(lanes),
      registry_(registry),
      ring_(ring),
      unpack_(unpack),
      objects_(device),
      pages_(ring.size()),
      routes_(device, registry, objects_.carrier()) {}

Status Capture::begin(sh_stream stream) {
    SH_TRY(objects_.open(lanes_));
    sh_backend_event fork = 0;
    SH_TRY(objects_.event(&fork));
    SH_TRY(unpack_.open_to_record(&objects_.unpacker()));
    routes_.set_unpacker(&objects_.unpacker());
    SH_TRY(device_.event_record(fork, stream));
    SH_TRY(device_.stream_wait_event(objects_.stream(), fork));
    stream_ = stream;
    return Status();
}

Unit* Capture::holder(const Unit& unit) {
    const uint32_t self = registry_.index_of(unit);
    for (uint32_t k = 0; k < unit.ring_pages; k++) {
        const uint32_t contents = page_of(unit, k).contents;
        if (contents == kNone || contents == self) continue;
        if (Unit& there = registry_.unit(contents); there.held) return &there;
    }
    return nullptr;
}

void Capture::find_missing(const Unit& unit) {
    find_missing_streamed(
        unit, unit.ring_pages, registry_.page_bytes(),
        [&](uint32_t k) -> const Ring::Page& { return page_of(unit, k); },
        [&](uint32_t fence) { return uses_[fence].last; }, &load_);
}

void Capture::find_fences(const Unit& unit) {
    for (const policy::PageRun& run : load_.runs) {
        const uint32_t first = static_cast<uint32_t>(load_.waits.size());
        each_fence(
            run, [&](uint32_t k) -> const Ring::Page& { return page_of(unit, k); },
            [&](uint32_t fence) {
                for (const UnitUse& end : uses_[fence].ends)
                    if (std::find(load_.waits.begin() + first, load_.waits.end(), end.event) == load_.waits.end())
                        load_.waits.push_back(end.event);
            });
        load_.run_waits.push_back({first, static_cast<uint32_t>(load_.waits.size()) - first});
    }
}

Status Capture::load(Unit& unit, Use& use) {
    find_fences(unit);
    routes_.begin(&load_);
    const uint64_t page = registry_.page_bytes(), own_bytes = unit.own.size() * page;
    for (size_t i = 0; i < load_.runs.size(); i++) {
        const uint64_t begin = own_bytes + load_.runs[i].first * page;
        routes_.add(unit, begin, std::min(unit.bytes, begin + load_.runs[i].pages * page), load_.run_waits[i]);
    }
    if (!load_.staged.empty())
        return Status(SH_ERROR_UNSUPPORTED, registry_.name_of(unit) +
                                                " cannot be captured: a graph cannot read a source that is not pinned, "
                                                "or that is packed where the device does not unpack");
    sh_backend_event loaded = 0;
    SH_TRY(objects_.event(&loaded));
    // After a failure from here on, these pages belong to no unit, and the graph loads them again when they are needed.
    for (const policy::PageRun& run : load_.runs)
        for (uint32_t k = run.first; k < run.first + run.pages; k++) page_of(unit, k).contents = kNone;
    SH_TRY(no_throw([&] { return copy(unit, loaded); }));
    for (const policy::PageRun& run : load_.runs)
        for (uint32_t k = run.first; k < run.first + run.pages; k++) page_of(unit, k) = {load_.unit, load_.unit};
    use.loaded = loaded;
    loads_++;
    copied_.commands += load_.copied.commands;
    copied_.bytes += load_.copied.bytes;
    return Status();
}

Status Capture::copy(Unit& unit, sh_backend_event loaded) {
    const sh_stream copies = objects_.stream();
    SH_TRY(routes_.issue_straight(copies));
    SH_TRY(LoadRoutes::issue_rest(device_, copies, &load_));
    SH_TRY(call_on_load(registry_, unit, load_.ranges, copies));
    return device_.event_record(loaded, copies);
}

Status Capture::acquire(Unit& unit, sh_stream stream) {
    load_.clear();
    load_.unit = registry_.index_of(unit);
    Use& use = uses_[load_.unit];
    find_missing(unit);
    if (!load_.runs.empty()) SH_TRY(load(unit, use));
    return use.loaded ? device_.stream_wait_event(stream, use.loaded) : Status();
}

Status Capture::release(Unit& unit, sh_stream stream) {
    if (!unit.ring_pages) return Status();
    Use& use = uses_[registry_.index_of(unit)];
    use.last = ++releases_;
    Status status = no_throw([&] { return note_end(use, stream); });
    if (!status.ok() && wrong_.ok()) wrong_ = status;  // what comes into these pages does not wait for the use
    return status;
}

Status Capture::note_end(Use& use, sh_stream stream) {
    const auto end = std::ranges::find(use.ends, stream, &UnitUse::stream);
    if (end != use.ends.end()) return device_.event_record(end->event, stream);
    sh_backend_event event = 0;
    SH_TRY(objects_.event(&event));
    SH_TRY(device_.event_record(event, stream));
    use.ends.push_back({stream, event});  // only now, because nothing in a capture may wait for an unrecorded event
    return Status();
}

Status Capture::end() {
    SH_TRY(objects_.unpacker().end_record(objects_.stream()));
    sh_backend_event joined = 0;
    SH_TRY(objects_.event(&joined));
    SH_TRY(device_.event_record(joined, objects_.stream()));
    SH_TRY(device_.stream_wait_event(stream_, joined));
    return wrong_;
}

std::unique_ptr<Graph> Capture::finish() {
    std::vector<uint32_t> units, ring;
    for (const auto& [unit, use] : uses_) units.push_back(unit);
    std::sort(units.begin(), units.end());
    for (const Ring::Page& page : pages_) ring.push_back(page.contents);
    // Moving the objects is the last thing that may fail. Until then the capture owns them.
    const transfer::Unpacker& unpacker = objects_.unpacker();
    const uint64_t unpack_memory = unpacker.has_recorded() ? unpacker.address() : 0;
    auto graph = std::make_unique<Graph>(std::move(objects_));
    graph->unpack_memory = unpack_memory;
    graph->units = std::move(units);
    graph->ring = std::move(ring);
    graph->loads = loads_;
    graph->pieces = copied_.commands;
    graph->bytes = copied_.bytes;
    return graph;
}

}  // namespace stagehand::core
