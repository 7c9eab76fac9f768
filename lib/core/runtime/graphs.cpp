#include "core/runtime/graphs.h"

#include <algorithm>

#include "base/no_throw.h"
#include "base/unlocked.h"

namespace stagehand::core {

Graphs::~Graphs() {
    for (auto& graph : graphs_) memory_.events.give(&graph->done);
}

uint64_t Graphs::add(std::unique_ptr<Graph> graph) noexcept {
    graph->id = next_;
    graphs_.push_back(std::move(graph));
    return next_++;
}

bool Graphs::hold_the_plan() const {
    return gate_.capturing() ||
           std::any_of(graphs_.begin(), graphs_.end(), [](const auto& graph) { return !graph->stale; });
}

Status Graphs::held() const {
    return Status(
        SH_ERROR_INVALID_STATE,
        gate_.title() + " cannot change its plan: destroy its graphs, or call sh_plan() with SH_PLAN_DROP_GRAPHS");
}

Graph* Graphs::find(uint64_t id) {
    const auto found = std::find_if(graphs_.begin(), graphs_.end(), [&](const auto& graph) { return graph->id == id; });
    return found == graphs_.end() ? nullptr : found->get();
}

bool Graphs::any_uses(uint32_t unit) const {
    return std::any_of(graphs_.begin(), graphs_.end(),
                       [&](const auto& graph) { return !graph->stale && graph->uses(unit); });
}

Status Graphs::enter(uint64_t id, sh_stream stream, Lock& lock) {
    SH_TRY(gate_.running());
    SH_TRY(gate_.note(movers_.take_failure()));
    Graph* const graph = find(id);
    if (!graph) return Status(SH_ERROR_INVALID_HANDLE, "the graph was destroyed");
    if (stream == SH_STREAM_HOST)
        return Status(SH_ERROR_INVALID_ARGUMENT, "stream is SH_STREAM_HOST: a launch needs a stream of the device");
    if (gate_.capturing())
        return Status(SH_ERROR_INVALID_STATE,
                      gate_.title() + " cannot enter a graph: a capture is under way, until sh_capture_end()");
    if (entered_)
        return Status(
            SH_ERROR_INVALID_STATE,
            gate_.title() +
                " cannot enter a graph: a graph of the runtime was entered and not left: call sh_graph_leave() first");
    if (graph->stale)
        return Status(SH_ERROR_STALE, "the graph was captured under a plan of " + gate_.title() +
                                          " that has changed since: capture the graph again");
    if (graph->unpack_memory && graph->unpack_memory != memory_.unpack_memory.unpacker().address())
        return Status(SH_ERROR_STALE, "the graph unpacks weights in memory that " + gate_.title() +
                                          " has at another address since: capture the graph again");
    SH_TRY(views_.check_no_capture(stream));
    launch_.reset();
    if (!gate_.in_step()) {
        count_.announce();
        launch_ = count_.begin();
    }
    entered_ = graph;  // from here on no streamed block is loaded
    gate_.graph_entered();
    entered_on_ = stream;
    const Gate::Inside inside(gate_);
    Status status = no_throw([&] {
        const uint64_t wrong = movers_.loader.times_wrong();
        memory_.contents.expect_launch();
        if (entered_unpacks()) gate_.wait(lock, [&] { return movers_.loader.queued() == 0 || gate_.closing(); });
        SH_TRY(residents_.bring(*graph, stream, lock));
        movers_.loader.look();
        if (movers_.loader.times_wrong() != wrong) {
            SH_TRY(movers_.loader.take_failure());
            return Status(SH_ERROR_BACKEND, "weights of the graph came wrong, and are to be loaded again");
        }
        return movers_.order_before(stream);
    });
    if (!status.ok()) {
        if (entered_unpacks())
            (void)movers_.loader.synchronize().ok();  // no load stands for what the packed weights that were brought
        entered_ = nullptr;
        gate_.graph_left();
    }
    gate_.notify();
    return gate_.note(status);
}

Status Graphs::leave(uint64_t id, sh_stream stream) {
    Graph* const graph = find(id);
    if (!graph) return Status(SH_ERROR_INVALID_HANDLE, "the graph was destroyed");
    if (entered_ != graph || entered_on_ != stream)
        return Status(SH_ERROR_INVALID_STATE,
                      gate_.title() + " cannot leave the graph: it was not entered on this stream");
    return leave(*graph, stream);
}

Status Graphs::leave(Graph& graph, sh_stream stream) {
    BackendDevice& backend = memory_.device;
    Status status;
    uint32_t number = 0;
    if (!graph.done) status = no_throw([&] { return memory_.events.take(&graph.done); });
    if (status.ok()) status = backend.event_record(graph.done, stream);
    // The launch and the loads that follow it use the same memory for packed weights.
    if (transfer::Unpacker& unpacker = memory_.unpack_memory.unpacker(); status.ok() && graph.unpack_memory)
        status = unpacker.follow(movers_.loader.stream(), graph.done);
    if (status.ok()) status = no_throw([&] { return memory_.streams.number(stream, &number); });
    if (status.ok()) {
        memory_.streams.mark(number);
        status = no_throw([&] { return memory_.streams.record(number); });
    }
    // Without an event, nobody could wait for the launch later. So this call waits for it now.
    if (!status.ok())
        if (Status waited = backend.stream_synchronize(stream); !waited.ok())
            status = Status(SH_ERROR_RUNTIME_LOST,
                            std::string(status.text()) + "; waiting for the stream failed too: " + waited.text());
    memory_.contents.take_over(graph.ring, graph.units, graph.done, uint64_t(1) << number);
    gate_.stats().loads += graph.loads;
    gate_.stats().load_pieces += graph.pieces;
    gate_.stats().bytes_to_device += graph.bytes;
    entered_ = nullptr;
    gate_.graph_left();
    if (launch_) {
        count_.end(&*launch_);
        if (Status told = count_.tell(*launch_); status.ok()) status = told;
    }
    step_order_.prefetcher.renew();
    gate_.notify();
    return gate_.note(status);
}

Status Graphs::follow_launch(Unit& unit, sh_stream stream, uint32_t flags, uint32_t* view_flags, Lock& lock) {
    BackendDevice& backend = memory_.device;
    while (const sh_backend_event arrives = unit.arrives()) {  // checked again after each wait
        uint32_t done = 0;
        SH_TRY(backend.event_query(arrives, &done));
        if (done) {
            memory_.contents.arrived(unit, arrives);
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
    Status status = unlocked(lock, [&] { return no_throw([&] { return memory_.device.event_synchronize(done); }); });
    if (--launch_waits_ == 0) gate_.notify();
    return status;
}

Status Graphs::wait_for_launches(Lock& lock) {
    const std::vector<sh_backend_event> launches = memory_.contents.launches();
    for (const sh_backend_event done : launches) SH_TRY(wait_for_launch(done, lock));
    return Status();
}

Status Graphs::drop(Lock& lock) {
    if (gate_.capturing() || entered_) return held();
    SH_TRY(wait_for_launches(lock));
    if (gate_.capturing() || entered_) return held();  // again, because the mutex was given up
    for (auto& graph : graphs_) graph->stale = true;
    drop_wanted_ = false;
    return Status();
}

Status Graphs::drop_if_wanted(Lock& lock) {
    if (!hold_the_plan()) drop_wanted_ = false;
    if (!drop_wanted_ || entered_ || gate_.views() || gate_.in_step() || gate_.capturing()) return Status();
    const Gate::Inside inside(gate_);
    Status status = drop(lock);
    SH_TRY(gate_.usable());
    return status.code() == SH_ERROR_INVALID_STATE ? Status() : gate_.note(status);
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
    const Gate::Inside inside(gate_);
    if (graph->done) {
        if (Status waited = wait_for_launch(graph->done, lock); status.ok()) status = waited;
        gate_.wait(lock, [&] { return launch_waits_ == 0; });
        memory_.contents.forget_launch(graph->done);
        memory_.events.give(&graph->done);
    }
    std::erase_if(graphs_, [&](const auto& other) { return other.get() == graph; });
    return gate_.note(status);
}

}  // namespace stagehand::core
