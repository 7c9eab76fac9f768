// C++ owners for captured steps: captures, graphs and launches. stagehand.hpp includes this file.
#ifndef STAGEHAND_GRAPH_HPP
#define STAGEHAND_GRAPH_HPP

#include <utility>

#include "error.hpp"

namespace stagehand {
inline namespace abi0 {

// The time in which the engine launches a captured step's native graph once on a stream. The destructor ends this time.
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

    // Ends the launch now. The launch has ended even if this throws.
    void end() {
        if (sh_graph* graph = std::exchange(graph_, nullptr)) check(sh_graph_leave(graph, stream_));
    }

private:
    void drop() noexcept {
        if (graph_) ignore(sh_graph_leave(graph_, stream_));
    }

    sh_graph* graph_ = nullptr;
    sh_stream stream_;
};

// The library's record of a captured step. The destructor destroys the record. The engine must not launch the native
// graph after that.
class Graph {
public:
    // Takes ownership of a graph.
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

    // The engine launches the native graph on the stream while the returned Launch lives.
    Launch launch(sh_stream stream) const { return Launch(graph_, stream); }

private:
    sh_graph* graph_ = nullptr;
};

// A runtime's part of a capture that is under way on a stream. The destructor ends the capture without a graph, and
// releases the views that are held. The engine must destroy these views before the capture, because the release of such
// a view could end another view of the same block.
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

    // Ends the capture. Call this only once. The capture has ended even if this throws, unless the status is
    // SH_ERROR_INVALID_STATE: views are held then, and the capture goes on.
    Graph end() {
        sh_graph* graph = nullptr;
        const sh_status status = sh_capture_end(runtime_, stream_, &graph);
        if (status != SH_ERROR_INVALID_STATE) runtime_ = nullptr;
        check(status);
        return Graph(graph);
    }

private:
    void drop() noexcept {
        if (runtime_) ignore(sh_capture_end(runtime_, stream_, nullptr));
    }

    sh_runtime* runtime_ = nullptr;
    sh_stream stream_;
};

}  // namespace abi0
}  // namespace stagehand

#endif
