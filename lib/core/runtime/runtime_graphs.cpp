// Captures, and launches of what was captured.
#include <algorithm>

#include "base/no_throw.h"
#include "base/unlocked.h"
#include "core/runtime/runtime.h"

namespace stagehand::core {

bool Runtime::plan_is_held() const {
    return capture_ || std::any_of(graphs_.begin(), graphs_.end(), [](const auto& graph) { return !graph->stale; });
}

Status Runtime::held_by_graphs() const {
    return Status(SH_ERROR_BUSY, tenant_name() + ": graphs hold the plan: destroy them first, or plan with SH_PLAN_DROP_GRAPHS");
}

Status Runtime::only_outside_capture() const {
    return capture_ ? Status(SH_ERROR_BUSY, tenant_name() + ": a capture is under way") : Status();
}

Status Runtime::capture_begin(sh_stream stream) {
    SH_TRY(usable());
    BackendDevice& backend = device_->backend();
    if (stream == SH_STREAM_HOST) return Status(SH_ERROR_INVALID_ARGUMENT, "stream is SH_STREAM_HOST");
    if (!backend.has_graphs()) return Status(SH_ERROR_UNSUPPORTED, device_->name() + " has no graphs");
    if (capture_) return Status(SH_ERROR_INVALID_STATE, tenant_name() + ": a capture is under way already");
    if (gate_.in_step()) return Status(SH_ERROR_INVALID_STATE, tenant_name() + ": a step is under way");
    if (gate_.views()) return Status(SH_ERROR_BUSY, tenant_name() + ": views are held");
    // That it could have more, when others give it up, is no reason: with graphs they need not for long.
    const bool has_to_change = replan_wanted_ || device_->arbiter().has_to_give(*this);
    if (!planned_ || !order_.known() || (has_to_change && !plan_is_held()))
        return Status(SH_ERROR_INVALID_STATE, tenant_name() + " has to plan first, which cannot be done while a stream captures: call sh_plan() before");
    uint32_t capturing = 0;
    SH_TRY(backend.stream_is_capturing(stream, &capturing));
    if (!capturing) return Status(SH_ERROR_INVALID_STATE, "the stream does not capture");
    abandoned_.clear();
    auto capture = std::make_unique<Capture>(backend, registry_, ring_);
    if (Status status = capture->begin(stream); !status.ok()) {
        abandoned_.push_back(capture->finish());   // the engine's capture may have taken them in already
        return status;
    }
    capture_ = std::move(capture);
    return Status();
}

Status Runtime::capture_acquire(sh_block id, sh_stream stream, sh_view* out) {
    Block* const block = registry_.find(id);
    if (!block) return unknown_block(id);
    Unit& unit = registry_.unit(block->unit);
    if (stream == SH_STREAM_HOST) return Status(SH_ERROR_BUSY, tenant_name() + ": a capture is under way, which the host cannot take part in");
    if (unit.memory != Memory::planned)
        return Status(SH_ERROR_UNSUPPORTED, registry_.name_of(*block) + " is not part of the plan: a graph needs memory that stays where it is");
    if (Unit* const holder = capture_->holder(unit)) return held_by(unit, *holder);
    SH_TRY(capture_->acquire(unit, stream));
    block->held++;
    unit.held++;
    gate_.view_taken();
    fill_view(*block, unit, 0, out);
    return Status();
}

Status Runtime::capture_release(Block& block, sh_stream stream) {
    Unit& unit = registry_.unit(block.unit);
    if (stream == SH_STREAM_HOST) return Status(SH_ERROR_BUSY, tenant_name() + ": a capture is under way, which the host cannot take part in");
    Status status = no_throw([&] { return capture_->release(unit, stream); });
    block.held--;
    unit.held--;
    gate_.view_ended();
    return status;
}

// All views that are held: a capture begins with none.
void Runtime::drop_captured_views() {
    if (!gate_.views()) return;
    for (Unit& unit : registry_.units()) {
        if (!unit.held) continue;
        for (Block& block : registry_.blocks_of(unit))
            for (; block.held; block.held--) gate_.view_ended();
        unit.held = 0;
    }
}

Status Runtime::capture_end(sh_stream stream, uint64_t* out_graph) {
    if (!capture_ || capture_->stream() != stream)
        return Status(SH_ERROR_INVALID_STATE, tenant_name() + ": no capture began on this stream");
    if (gate_.views() && out_graph) return Status(SH_ERROR_INVALID_STATE, tenant_name() + ": views are held; release them first");
    drop_captured_views();
    const Status status = capture_->end();
    std::unique_ptr<Graph> graph = capture_->finish();
    capture_.reset();
    if (!out_graph || !status.ok()) {
        abandoned_.push_back(std::move(graph));
    } else {
        *out_graph = graph->id = next_graph_++;
        graphs_.push_back(std::move(graph));
    }
    return note(status);
}

Graph* Runtime::find_graph(uint64_t id) {
    const auto found = std::find_if(graphs_.begin(), graphs_.end(), [&](const auto& graph) { return graph->id == id; });
    return found == graphs_.end() ? nullptr : found->get();
}

const Graph* Runtime::graph_that_uses(uint32_t unit) const {
    for (const auto& graph : graphs_)
        if (!graph->stale && graph->uses(unit)) return graph.get();
    return nullptr;
}

// Nobody may need what lies in the ring any more, once this has returned: the graph fills it without asking.
Status Runtime::clear_ring(Lock& lock) {
    for (;;) {   // asked anew after each wait
        SH_TRY(usable());
        if (gate_.bringings()) {
            gate_.wait(lock, [&] { return gate_.bringings() == 0 || gate_.closing(); });
            continue;
        }
        const Obstacle obstacle = contents_.in_the_ring();
        if (obstacle.kind == Obstacle::none) return Status();
        SH_TRY(remove(obstacle, nullptr, lock));
    }
}

// What the plan keeps resident of the unit is there or on its way when this returns.
Status Runtime::load_own(Unit& unit, Lock& lock) {
    for (;;) {   // asked anew after each wait
        SH_TRY(usable());
        if (unit.updating()) return Status(SH_ERROR_BUSY, registry_.name_of(unit) + ": its source is being updated");
        if (unit.stale() && unit.held) return Status(SH_ERROR_HELD, registry_.name_of(unit) + " is to be loaded anew, and held: release it first");
        if (unit.load() && !unit.load_queued() && !unit.load()->issued) (void)loader_.wait_issued(unit, lock, 0).ok();   // failed: tried again
        bool waited = false;
        SH_TRY(make_current(unit, &waited, lock));
        if (waited) continue;
        if (unit.own_valid() == unit.own.size()) return Status();
        if (unit.load_queued()) loader_.cancel(unit, lock);
        else if (unit.writing() != Writing::none) SH_TRY(write_back_.wait(unit, lock));
        else return loader_.begin_part(unit, 0, 0);
    }
}

// What the plan keeps resident of the graph's blocks is loaded where it is missing.
Status Runtime::load_residents(const Graph& graph, sh_stream stream, Lock& lock) {
    for (const uint32_t index : graph.units) SH_TRY(load_own(registry_.unit(index), lock));
    for (const uint32_t index : graph.units) {
        Unit& unit = registry_.unit(index);
        if (!unit.load()) continue;
        SH_TRY(loader_.wait_issued(unit, lock, 0));
        Status failure;
        const bool done = loader_.settle(unit, &failure);
        SH_TRY(failure);
        if (!done) SH_TRY(device_->backend().stream_wait_event(stream, unit.load()->done));
    }
    SH_TRY(usable());
    for (const uint32_t index : graph.units)
        if (const Unit& unit = registry_.unit(index); unit.own_valid() < unit.own.size() || unit.stale() || unit.updating())
            return loader_.last_failure().ok() ? Status(SH_ERROR_BUSY, registry_.name_of(unit) + " was changed meanwhile") : loader_.last_failure();
    return Status();
}

// The launch comes after whatever the runtime has under way on the device.
Status Runtime::order_launch(sh_stream stream) {
    BackendDevice& backend = device_->backend();
    std::vector<sh_backend_event> waits;
    SH_TRY(streams_.append_events(~uint64_t(0), &waits));
    for (const sh_backend_event event : waits) SH_TRY(backend.stream_wait_event(stream, event));
    sh_backend_event event = 0;
    SH_TRY(events_.take(&event));
    Status status;
    for (const sh_stream own : {loader_.copy_stream(), write_back_.stream()}) {
        if (status.ok()) status = backend.event_record(event, own);
        if (status.ok()) status = backend.stream_wait_event(stream, event);
    }
    events_.give(&event);
    return status;
}

// A launch is a step to whoever divides memory by use, and to whoever reads the figures; in a step it is part of it.
void Runtime::begin_counting_launch() {
    launch_counts_ = !gate_.in_step();
    if (!launch_counts_) return;
    device_->notice_free_memory(false);
    device_->arbiter().note_step(*this);
    launch_began_ns_ = device_->backend().now_ns();
    before_launch_ = stats_;
}

Status Runtime::count_launch() {
    if (!launch_counts_) return Status();
    const uint64_t now = device_->backend().now_ns();
    stats_.steps++;
    stats_.last_step_ns = now - launch_began_ns_;
    telemetry::trace_step(gate_.name().c_str(), stats_.steps, launch_began_ns_, now);
    return no_throw([&] { return log_step(before_launch_); });
}

Status Runtime::graph_enter(uint64_t id, sh_stream stream, Lock& lock) {
    SH_TRY(usable());
    SH_TRY(write_back_.take_failure());
    Graph* const graph = find_graph(id);
    if (!graph) return Status(SH_ERROR_INVALID_HANDLE, "the graph was destroyed");
    if (stream == SH_STREAM_HOST) return Status(SH_ERROR_INVALID_ARGUMENT, "stream is SH_STREAM_HOST");
    if (capture_) return Status(SH_ERROR_INVALID_STATE, tenant_name() + ": a capture is under way");
    if (entered_) return Status(SH_ERROR_INVALID_STATE, tenant_name() + ": a graph has been entered and not left");
    if (graph->stale)
        return Status(SH_ERROR_STALE, "the graph was captured under a plan of " + tenant_name() + " that has changed since: capture it anew");
    SH_TRY(check_no_capture(stream));
    begin_counting_launch();
    entered_ = graph;   // from here on no streamed block is brought
    entered_on_ = stream;
    const Gate::Inside inside(gate_);
    Status status = no_throw([&] {
        ring_.expect_launch();
        SH_TRY(clear_ring(lock));
        SH_TRY(load_residents(*graph, stream, lock));
        SH_TRY(clear_ring(lock));   // the mutex was given up
        return order_launch(stream);
    });
    if (!status.ok()) entered_ = nullptr;
    gate_.notify();
    return note(status);
}

Status Runtime::graph_leave(uint64_t id, sh_stream stream) {
    Graph* const graph = find_graph(id);
    if (!graph) return Status(SH_ERROR_INVALID_HANDLE, "the graph was destroyed");
    if (entered_ != graph || entered_on_ != stream) return Status(SH_ERROR_INVALID_STATE, tenant_name() + ": the graph was not entered on this stream");
    return leave_graph(*graph, stream);
}

Status Runtime::leave_graph(Graph& graph, sh_stream stream) {
    BackendDevice& backend = device_->backend();
    Status status;
    uint32_t number = 0;
    if (!graph.done) status = no_throw([&] { return events_.take(&graph.done); });
    if (status.ok()) status = backend.event_record(graph.done, stream);
    if (status.ok()) status = streams_.number(stream, &number);
    if (status.ok()) {
        streams_.mark(number);
        status = streams_.record(number);
    }
    // Without an event nobody could wait for the launch later, so it is waited for now.
    if (!status.ok())
        if (Status waited = backend.stream_synchronize(stream); !waited.ok())
            status = Status(SH_ERROR_RUNTIME_LOST, std::string(status.text()) + "; waiting for the stream instead: " + waited.text());
    if (graph.done) ring_.launched(graph.done);
    contents_.take_over(graph.ring, graph.units, graph.done, uint64_t(1) << number);
    stats_.loads += graph.loads;
    stats_.load_pieces += graph.pieces;
    stats_.bytes_to_device += graph.bytes;
    entered_ = nullptr;
    if (Status counted = count_launch(); status.ok()) status = counted;
    prefetcher_.renew();
    gate_.notify();
    return note(status);
}

// Views of what a launch brings come after it.
Status Runtime::follow_launch(Unit& unit, sh_stream stream, uint32_t flags, uint32_t* view_flags, Lock& lock) {
    BackendDevice& backend = device_->backend();
    while (const sh_backend_event arrives = unit.arrives()) {   // asked anew after each wait
        uint32_t done = 0;
        SH_TRY(backend.event_query(arrives, &done));
        if (done) {
            contents_.arrived(unit, arrives);
            continue;
        }
        if (stream != SH_STREAM_HOST) return backend.stream_wait_event(stream, arrives);
        if (flags & SH_ACQUIRE_NO_WAIT) return Status(SH_NOT_READY);
        const uint64_t began = backend.now_ns();
        SH_TRY(wait_for_launch(arrives, lock));
        note_wait(unit, began, view_flags);
    }
    return Status();
}

Status Runtime::wait_for_launch(sh_backend_event done, Lock& lock) {
    launch_waits_++;   // keeps the event
    Status status = unlocked(lock, [&] { return no_throw([&] { return device_->backend().event_synchronize(done); }); });
    if (--launch_waits_ == 0) gate_.notify();
    return status;
}

// Waits on the host until no launch reads any source.
Status Runtime::wait_for_launches(Lock& lock) {
    const std::vector<sh_backend_event> launches = ring_.launches();
    for (const sh_backend_event done : launches) SH_TRY(wait_for_launch(done, lock));
    return Status();
}

Status Runtime::drop_graphs(Lock& lock) {
    if (capture_ || entered_) return held_by_graphs();
    SH_TRY(wait_for_launches(lock));
    if (capture_ || entered_) return held_by_graphs();   // the mutex was given up
    for (auto& graph : graphs_) graph->stale = true;
    drop_graphs_wanted_ = false;
    return Status();
}

// Views, or a graph that has been entered, put it off until a later step.
Status Runtime::drop_graphs_if_wanted(Lock& lock) {
    if (!plan_is_held()) drop_graphs_wanted_ = false;
    if (!drop_graphs_wanted_ || entered_ || gate_.views() || gate_.in_step() || capture_) return Status();
    const Gate::Inside inside(gate_);
    Status status = drop_graphs(lock);
    SH_TRY(usable());
    return status.code() == SH_ERROR_BUSY ? Status() : note(status);
}

Status Runtime::graph_destroy(uint64_t id, Lock& lock) {
    Graph* const graph = find_graph(id);
    if (!graph) return Status();
    Status status;
    if (entered_ == graph) {
        constexpr sh_stream kAfterAllThreads = 0;   // the driver's: it waits for every thread's own default stream
        status = leave_graph(*graph, BackendDevice::is_of_this_thread(entered_on_) ? entered_on_ : kAfterAllThreads);
    }
    const Gate::Inside inside(gate_);
    if (graph->done) {
        if (Status waited = wait_for_launch(graph->done, lock); status.ok()) status = waited;
        gate_.wait(lock, [&] { return launch_waits_ == 0; });
        ring_.forget_launch(graph->done);
        for (Unit& unit : registry_.units()) contents_.arrived(unit, graph->done);
        events_.give(&graph->done);
    }
    std::erase_if(graphs_, [&](const auto& other) { return other.get() == graph; });
    SH_TRY(note(status));
    return leave_if_due(lock);
}

}  // namespace stagehand::core
