// Captures into graphs, and their launches.
#include "api/guard.h"

using namespace stagehand;
using namespace stagehand::api;

namespace {

// A graph belongs to its runtime, which knows it by a number.
struct GraphName {
    sh_runtime* runtime = nullptr;
    uint64_t id = 0;
};
using Graphs = HandleTable<GraphName, kGraphTag>;

Graphs& graphs() {
    static auto* const table = new Graphs;  // never freed: threads may still call while the process ends
    return *table;
}

Status find_graph(sh_graph* handle, GraphName* out, LockedRuntime* at) {
    {
        core::Lock lock;
        const auto* slot = graphs().lock(handle, &lock);
        if (!slot) return Status(SH_ERROR_INVALID_HANDLE, "graph is NULL, was destroyed, or is no graph");
        *out = *slot->object;
    }
    return find_runtime(out->runtime, at);
}

}  // namespace

extern "C" {

sh_status sh_capture_begin(sh_runtime* runtime, sh_stream stream) {
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->capture_begin(at.runtime->name_of_stream(stream));
    });
}

sh_status sh_capture_end(sh_runtime* runtime, sh_stream stream, sh_graph** out_graph) {
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        if (!out_graph) return at.runtime->capture_end(at.runtime->name_of_stream(stream), nullptr);
        auto name = std::make_shared<GraphName>();
        Graphs::Reservation slot(graphs());
        name->runtime = runtime;
        SH_TRY(at.runtime->capture_end(at.runtime->name_of_stream(stream), &name->id));
        *out_graph = static_cast<sh_graph*>(slot.publish(std::move(name)));
        return Status();
    });
}

sh_status sh_graph_enter(sh_graph* graph, sh_stream stream) {
    return guarded([&] {
        GraphName name;
        LockedRuntime at;
        SH_TRY(find_graph(graph, &name, &at));
        return at.runtime->graphs().enter(name.id, at.runtime->name_of_stream(stream), at.lock);
    });
}

sh_status sh_graph_leave(sh_graph* graph, sh_stream stream) {
    return guarded([&] {
        GraphName name;
        LockedRuntime at;
        SH_TRY(find_graph(graph, &name, &at));
        return at.runtime->graphs().leave(name.id, at.runtime->name_of_stream(stream));
    });
}

void sh_graph_destroy(sh_graph* graph) {
    (void)guarded([&] {
        if (!graph) return Status();
        core::Lock lock;
        auto* slot = graphs().lock(graph, &lock);
        if (!slot) return Status(SH_ERROR_INVALID_HANDLE, "graph was destroyed, or is no graph");
        const std::shared_ptr<GraphName> name = graphs().remove(*slot);
        lock.unlock();
        graphs().recycle(*slot);
        LockedRuntime at;
        if (!find_runtime(name->runtime, &at).ok()) return Status();  // it went with its runtime
        return at.runtime->graph_destroy(name->id, at.lock);
    });
}

}  // extern "C"
