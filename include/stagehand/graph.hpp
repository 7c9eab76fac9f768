// C++ owners of captured steps: captures, graphs, and their launches. Included by stagehand.hpp.
#ifndef STAGEHAND_GRAPH_HPP
#define STAGEHAND_GRAPH_HPP

#include <utility>

#include "error.hpp"

namespace stagehand {
inline namespace abi0 {

// The time in which a captured step's native graph is launched on a stream, once: ended by the destructor.
class Launch {
public:
    Launch(sh_graph* graph, sh_stream stream) : stream_(stream) {
        check(sh_graph_enter(graph, stream));
        graph_ = graph;
    }
    Launch(Launch&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)), stream_(other.stream_) {}
    Launch& operator=(Launch&& other) noexcept {
        if (this != &other) {
            drop();
            graph_ = std::exchange(other.graph_, nullptr);
            stream_ = other.stream_;
        }
        return *this;
    }
    ~Launch() { drop(); }

    // Ends it now. It has ended even if this throws.
    void end() {
        if (sh_graph* graph = std::exchange(graph_, nullptr)) check(sh_graph_leave(graph, stream_));
    }

private:
    void drop() noexcept {
        if (graph_) sh_graph_leave(graph_, stream_);
    }

    sh_graph* graph_ = nullptr;
    sh_stream stream_;
};

// What the library knows of a captured step: destroyed by the destructor, after which the native graph must not be launched.
class Graph {
public:
    // Takes over a graph.
    explicit Graph(sh_graph* graph) noexcept : graph_(graph) {}
    Graph(Graph&& other) noexcept : graph_(other.release()) {}
    Graph& operator=(Graph&& other) noexcept {
        if (this != &other) {
            sh_graph_destroy(graph_);
            graph_ = other.release();
        }
        return *this;
    }
    ~Graph() { sh_graph_destroy(graph_); }

    sh_graph* get() const noexcept { return graph_; }
    sh_graph* release() noexcept { return std::exchange(graph_, nullptr); }

    // The engine launches the native graph on the stream while this lives.
    Launch launch(sh_stream stream) const { return Launch(graph_, stream); }

private:
    sh_graph* graph_ = nullptr;
};

// A runtime's part of a capture that is under way on a stream. The destructor ends it without a graph, and releases what is held:
// views are destroyed before, as their own releases could end those of others.
class Capture {
public:
    Capture(sh_runtime* runtime, sh_stream stream) : stream_(stream) {
        check(sh_capture_begin(runtime, stream));
        runtime_ = runtime;
    }
    Capture(Capture&& other) noexcept : runtime_(std::exchange(other.runtime_, nullptr)), stream_(other.stream_) {}
    Capture& operator=(Capture&& other) noexcept {
        if (this != &other) {
            drop();
            runtime_ = std::exchange(other.runtime_, nullptr);
            stream_ = other.stream_;
        }
        return *this;
    }
    ~Capture() { drop(); }

    // Once. It has ended even if this throws, unless views are held (SH_ERROR_INVALID_STATE): then it goes on.
    Graph end() {
        sh_graph* graph = nullptr;
        const sh_status status = sh_capture_end(runtime_, stream_, &graph);
        if (status != SH_ERROR_INVALID_STATE) runtime_ = nullptr;
        check(status);
        return Graph(graph);
    }

private:
    void drop() noexcept {
        if (runtime_) sh_capture_end(runtime_, stream_, nullptr);
    }

    sh_runtime* runtime_ = nullptr;
    sh_stream stream_;
};

}  // namespace abi0
}  // namespace stagehand

#endif
