#include "core/runtime/graphs.h"

#include <algorithm>

#include "base/no_throw.h"
#include "base/unlocked.h"

namespace stagehand::core {

Graphs::~Graphs() {
    for (auto& graph : graphs_) parts_.events.give(&graph->done);
}

uint64_t Graphs::add(std::unique_ptr<Graph> graph) noexcept {
    graph->id = next_;
    graphs_.push_back(std::move(graph));
    return next_++;
}

bool Graphs::hold_the_plan() const {
    return captures_.under_way() ||
           std::any_of(graphs_.begin(), graphs_.end(), [](const auto& graph) { return !graph->stale; });
}

Status Graphs::held() const {
    return Status(SH_ERROR_INVALID_STATE,
                  parts_.gate.title() +
                      " cannot change its plan: destroy its graphs, or call sh_plan() with SH_PLAN_DROP_GRAPHS");
}

Graph* Graphs::find(uint64_t id) {
    const auto found = std::find_if(graphs_.begin(), graphs_.end(), [&](const auto& graph) { return graph->id == id; });
    return found == graphs_.end() ? nullptr : found->get();
}

bool Graphs::any_uses(uint32_t unit) const {
    return std::any_of(graphs_.begin(), graphs_.end(),
                       [&](const auto& graph) { return !graph->stale && graph->uses(unit); });
}

// After this call nobody needs the contents of the ring any more, because the graph overwrites them without asking.
Status Graphs::clear_ring(Lock& lock) {
    for (;;) {  // checked again after each wait
        SH_TRY(parts_.gate.usable());
        if (parts_.gate.bringings()) {
            parts_.gate.wait(lock, [&] { return parts_.gate.bringings() == 0 || parts_.gate.closing(); });
            continue;
        }
        const Obstacle obstacle = parts_.contents.in_the_ring();
        if (obstacle.kind == Obstacle::none) return Status();
        SH_TRY(clearance_.remove(obstacle, nullptr, lock));
    }
}

// Loads the pages of the unit that the plan keeps resident. They are present or on their way when this call returns.
Status Graphs::load_own(Unit& unit, Lock& lock) {
    for (;;) {  // checked again after each wait
        SH_TRY(parts_.gate.usable());
        if (unit.updating())
            return Status(SH_ERROR_INVALID_STATE,
                          parts_.registry.name_of(unit) + " cannot be loaded while its source is being updated");
        if (unit.stale() && unit.held)
            return Status(SH_ERROR_HELD,
                          parts_.registry.name_of(unit) + " must be loaded again: release its views first");
        bool waited = false;
        SH_TRY(clearance_.make_current(unit, &waited, lock));
        if (waited) continue;
        if (unit.own_valid() == unit.own.size()) return Status();
        if (unit.load_queued())
            parts_.loader.cancel(unit, lock);
        else if (unit.writing() != Writing::none)
            SH_TRY(parts_.write_back.wait(unit, lock));
        else
            return parts_.loader.begin_part(unit, 0, 0);
    }
}

// Loads the missing resident pages of the graph's blocks.
Status Graphs::load_residents(const Graph& graph, sh_stream stream, Lock& lock) {
    for (const uint32_t index : graph.units) SH_TRY(load_own(parts_.registry.unit(index), lock));
    for (const uint32_t index : graph.units) {
        Unit& unit = parts_.registry.unit(index);
        if (!unit.load()) continue;
        SH_TRY(parts_.loader.wait_issued(unit, lock, 0));
        Status failure;
        const bool done = parts_.loader.settle(unit, &failure);
        SH_TRY(failure);
        if (!done) SH_TRY(parts_.backend().stream_wait_event(stream, unit.load()->done));
    }
    SH_TRY(parts_.gate.usable());
    for (const uint32_t index : graph.units)
        if (const Unit& unit = parts_.registry.unit(index);
            unit.own_valid() < unit.own.size() || unit.stale() || unit.updating())
            return !parts_.loader.last_failure().ok()
                       ? parts_.loader.last_failure()
                       : Status(SH_ERROR_BUSY,
                                parts_.registry.name_of(unit) + " changed while the graph was being entered");
    return Status();
}

// Brings the packed weights that are to stay on the device, because the graph unpacks them there.
Status Graphs::bring_kept(const Graph& graph) {
    for (const uint32_t index : graph.units) SH_TRY(parts_.loader.bring_kept(parts_.registry.unit(index)));
    return Status();
}

// Makes the launch wait for all work that the runtime has under way on the device.
Status Graphs::order_launch(sh_stream stream) {
    BackendDevice& backend = parts_.backend();
    std::vector<sh_backend_event> waits;
    SH_TRY(parts_.streams.append_events(~uint64_t(0), &waits));
    for (const sh_backend_event event : waits) SH_TRY(backend.stream_wait_event(stream, event));
    sh_backend_event event = 0;
    SH_TRY(parts_.events.take(&event));
    Status status;
    for (const bool loads : {true, false}) {
        if (status.ok()) status = loads ? parts_.loader.finish(event) : parts_.write_back.record(event);
        if (status.ok()) status = backend.stream_wait_event(stream, event);
    }
    transfer::Unpacker& unpacker = parts_.unpack_memory.unpacker();
    if (status.ok() && unpacker.is_open()) status = unpacker.lead(stream, event);
    parts_.events.give(&event);
    return status;
}

Status Graphs::enter(uint64_t id, sh_stream stream, Lock& lock) {
    SH_TRY(parts_.gate.running());
    SH_TRY(parts_.take_failure());
    Graph* const graph = find(id);
    if (!graph) return Status(SH_ERROR_INVALID_HANDLE, "the graph was destroyed");
    if (stream == SH_STREAM_HOST)
        return Status(SH_ERROR_INVALID_ARGUMENT, "stream is SH_STREAM_HOST: a launch needs a stream of the device");
    if (captures_.under_way())
        return Status(SH_ERROR_INVALID_STATE,
                      parts_.gate.title() + " cannot enter a graph: a capture is under way, until sh_capture_end()");
    if (entered_)
        return Status(
            SH_ERROR_INVALID_STATE,
            parts_.gate.title() +
                " cannot enter a graph: a graph of the runtime was entered and not left: call sh_graph_leave() first");
    if (graph->stale)
        return Status(SH_ERROR_STALE, "the graph was captured under a plan of " + parts_.gate.title() +
                                          " that has changed since: capture the graph again");
    if (graph->unpack_memory && graph->unpack_memory != parts_.unpack_memory.unpacker().address())
        return Status(SH_ERROR_STALE, "the graph unpacks weights in memory that " + parts_.gate.title() +
                                          " has at another address since: capture the graph again");
    SH_TRY(parts_.check_no_capture(stream));
    launch_.reset();
    if (!parts_.gate.in_step()) {
        count_.announce();
        launch_ = count_.begin();
    }
    entered_ = graph;  // from here on no streamed block is loaded
    parts_.gate.graph_entered();
    entered_on_ = stream;
    const Gate::Inside inside(parts_.gate);
    Status status = no_throw([&] {
        const uint64_t wrong = parts_.loader.times_wrong();
        parts_.ring.expect_launch();
        if (entered_unpacks())
            parts_.gate.wait(lock, [&] { return parts_.loader.queued() == 0 || parts_.gate.closing(); });
        SH_TRY(clear_ring(lock));
        SH_TRY(load_residents(*graph, stream, lock));
        SH_TRY(clear_ring(lock));  // again, because the mutex was given up
        if (entered_unpacks()) SH_TRY(bring_kept(*graph));
        parts_.loader.look();
        if (parts_.loader.times_wrong() != wrong) {
            SH_TRY(parts_.loader.take_failure());
            return Status(SH_ERROR_BACKEND, "weights of the graph came wrong, and are to be loaded again");
        }
        return order_launch(stream);
    });
    if (!status.ok()) {
        if (entered_unpacks()) (void)parts_.loader.synchronize().ok();  // no load stands for what bring_kept() copies
        entered_ = nullptr;
        parts_.gate.graph_left();
    }
    parts_.gate.notify();
    return parts_.gate.note(status);
}

Status Graphs::leave(uint64_t id, sh_stream stream) {
    Graph* const graph = find(id);
    if (!graph) return Status(SH_ERROR_INVALID_HANDLE, "the graph was destroyed");
    if (entered_ != graph || entered_on_ != stream)
        return Status(SH_ERROR_INVALID_STATE,
                      parts_.gate.title() + " cannot leave the graph: it was not entered on this stream");
    return leave(*graph, stream);
}

Status Graphs::leave(Graph& graph, sh_stream stream) {
    BackendDevice& backend = parts_.backend();
    Status status;
    uint32_t number = 0;
    if (!graph.done) status = no_throw([&] { return parts_.events.take(&graph.done); });
    if (status.ok()) status = backend.event_record(graph.done, stream);
    // The launch and the loads that follow it use the same memory for packed weights.
    if (transfer::Unpacker& unpacker = parts_.unpack_memory.unpacker(); status.ok() && graph.unpack_memory)
        status = unpacker.follow(parts_.loader.stream(), graph.done);
    if (status.ok()) status = no_throw([&] { return parts_.streams.number(stream, &number); });
    if (status.ok()) {
        parts_.streams.mark(number);
        status = no_throw([&] { return parts_.streams.record(number); });
    }
    // Without an event, nobody could wait for the launch later. So this call waits for it now.
    if (!status.ok())
        if (Status waited = backend.stream_synchronize(stream); !waited.ok())
            status = Status(SH_ERROR_RUNTIME_LOST,
                            std::string(status.text()) + "; waiting for the stream failed too: " + waited.text());
    if (graph.done) parts_.ring.launched(graph.done);
    parts_.contents.take_over(graph.ring, graph.units, graph.done, uint64_t(1) << number);
    parts_.stats.loads += graph.loads;
    parts_.stats.load_pieces += graph.pieces;
    parts_.stats.bytes_to_device += graph.bytes;
    entered_ = nullptr;
    parts_.gate.graph_left();
    if (launch_) {
        count_.end(&*launch_);
        if (Status told = count_.tell(*launch_); status.ok()) status = told;
    }
    parts_.prefetcher.renew();
    parts_.gate.notify();
    return parts_.gate.note(status);
}

Status Graphs::follow_launch(Unit& unit, sh_stream stream, uint32_t flags, uint32_t* view_flags, Lock& lock) {
    BackendDevice& backend = parts_.backend();
    while (const sh_backend_event arrives = unit.arrives()) {  // checked again after each wait
        uint32_t done = 0;
        SH_TRY(backend.event_query(arrives, &done));
        if (done) {
            parts_.contents.arrived(unit, arrives);
            continue;
        }
        if (stream != SH_STREAM_HOST) return backend.stream_wait_event(stream, arrives);
        if (flags & SH_ACQUIRE_NO_WAIT) return Status(SH_NOT_READY);
        const uint64_t began = backend.now_ns();
        SH_TRY(wait_for_launch(arrives, lock));
        views_.note_wait(unit, began, view_flags);
    }
    return Status();
}

Status Graphs::wait_for_launch(sh_backend_event done, Lock& lock) {
    launch_waits_++;  // while this is not 0, the event is kept
    Status status = unlocked(lock, [&] { return no_throw([&] { return parts_.backend().event_synchronize(done); }); });
    if (--launch_waits_ == 0) parts_.gate.notify();
    return status;
}

Status Graphs::wait_for_launches(Lock& lock) {
    const std::vector<sh_backend_event> launches = parts_.ring.launches();
    for (const sh_backend_event done : launches) SH_TRY(wait_for_launch(done, lock));
    return Status();
}

Status Graphs::drop(Lock& lock) {
    if (captures_.under_way() || entered_) return held();
    SH_TRY(wait_for_launches(lock));
    if (captures_.under_way() || entered_) return held();  // again, because the mutex was given up
    for (auto& graph : graphs_) graph->stale = true;
    drop_wanted_ = false;
    return Status();
}

Status Graphs::drop_if_wanted(Lock& lock) {
    if (!hold_the_plan()) drop_wanted_ = false;
    if (!drop_wanted_ || entered_ || parts_.gate.views() || parts_.gate.in_step() || captures_.under_way())
        return Status();
    const Gate::Inside inside(parts_.gate);
    Status status = drop(lock);
    SH_TRY(parts_.gate.usable());
    return status.code() == SH_ERROR_INVALID_STATE ? Status() : parts_.gate.note(status);
}

Status Graphs::destroy(uint64_t id, Lock& lock) {
    Graph* const graph = find(id);
    if (!graph) return Status();
    Status status;
    if (entered_ == graph) {
        // The driver's own default stream waits for every thread's own default stream.
        constexpr sh_stream kAfterAllThreads = 0;
        status = leave(*graph, BackendDevice::is_of_this_thread(entered_on_) ? entered_on_ : kAfterAllThreads);
    }
    const Gate::Inside inside(parts_.gate);
    if (graph->done) {
        if (Status waited = wait_for_launch(graph->done, lock); status.ok()) status = waited;
        parts_.gate.wait(lock, [&] { return launch_waits_ == 0; });
        parts_.ring.forget_launch(graph->done);
        for (Unit& unit : parts_.registry.units()) parts_.contents.arrived(unit, graph->done);
        parts_.events.give(&graph->done);
    }
    std::erase_if(graphs_, [&](const auto& other) { return other.get() == graph; });
    return parts_.gate.note(status);
}

}  // namespace stagehand::core
