// The owners of graph.hpp: a captured step streams a model larger than its budget, captures and launches end by scope,
// and misplaced calls throw.
//
//     cpp_graphs PLUGIN    the backend of tests/graphs, which has graphs and needs no GPU
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <stagehand/stagehand.hpp>
#include <type_traits>
#include <vector>

#include "../graphs/capture.h"
#include "owners.hpp"

namespace {

namespace sh = stagehand;

static_assert(!std::is_copy_constructible_v<sh::Capture> && std::is_nothrow_move_assignable_v<sh::Capture>);
static_assert(!std::is_copy_constructible_v<sh::Graph> && std::is_nothrow_move_assignable_v<sh::Graph>);
static_assert(!std::is_copy_constructible_v<sh::Launch> && std::is_nothrow_move_assignable_v<sh::Launch>);

constexpr std::size_t kBlocks = 8, kBlockBytes = 36864;

// The driver's calls of an engine.
struct Driver {
    explicit Driver(const char* path) : library(dlopen(path, RTLD_NOW)) {}

    template <class Function>
    Function* find(const char* name) const {
        return reinterpret_cast<Function*>(dlsym(library, name));
    }
    void begin(sh_stream stream) const {
        CHECK(find<decltype(sh_test_capture_begin)>("sh_test_capture_begin")(stream) == SH_OK);
    }
    sh_test_graph* end(sh_stream stream) const {
        sh_test_graph* graph = nullptr;
        CHECK(find<decltype(sh_test_capture_end)>("sh_test_capture_end")(stream, &graph) == SH_OK);
        return graph;
    }
    void launch(sh_test_graph* graph, sh_stream stream) const {
        CHECK(find<decltype(sh_test_graph_launch)>("sh_test_graph_launch")(graph, stream) == SH_OK);
    }
    void destroy(sh_test_graph* graph) const { find<decltype(sh_test_graph_destroy)>("sh_test_graph_destroy")(graph); }

    void* library;
};

// The data that the captured step compares in each launch.
struct Look {
    const void* address;
    unsigned char wanted;
    std::atomic<int>*right, *wrong;
};

void look(void* data) {
    const Look& at = *static_cast<Look*>(data);
    const std::vector<unsigned char> wanted(kBlockBytes, at.wanted);
    ++(std::memcmp(at.address, wanted.data(), kBlockBytes) == 0 ? *at.right : *at.wrong);
}

struct Model {
    explicit Model(const sh::Device& device) : memory(device, kBlocks * kBlockBytes), runtime(device), stream(device) {
        for (std::size_t i = 0; i < kBlocks; ++i)
            std::memset(static_cast<char*>(memory.data()) + i * kBlockBytes, int(i + 1), kBlockBytes);
        blocks = register_in_a_row(runtime, memory.data(), kBlocks, kBlockBytes);
        std::vector<sh_use> uses(kBlocks, sh_use(SH_USE_INIT));
        for (std::size_t i = 0; i < kBlocks; ++i) uses[i].block = blocks[i];
        runtime.set_schedule(uses);
    }

    void forward() {
        looks.reserve(kBlocks);
        for (std::size_t i = 0; i < kBlocks; ++i) {
            const sh::View view = runtime.acquire(blocks[i], stream);
            looks.push_back({view.address(), static_cast<unsigned char>(i + 1), &right, &wrong});
            stream.launch(look, &looks.back());
        }
    }

    sh::PinnedMemory memory;
    sh::Runtime runtime;
    sh::Stream stream;
    std::vector<sh_block> blocks;
    std::vector<Look> looks;
    std::atomic<int> right{0}, wrong{0};
};

void launches_stream_the_model(const Driver& driver, sh::Device& device) {
    Model model(device);
    const sh_stream stream = model.stream.get();
    CHECK(model.runtime.plan().ring_bytes > 0);
    driver.begin(stream);
    sh::Capture capture = model.runtime.capture(stream);
    model.forward();
    sh::Graph graph = capture.end();
    sh_test_graph* const native = driver.end(stream);
    CHECK(model.right == 0);
    for (int n = 0; n < 3; ++n) {
        sh::Launch launch = graph.launch(stream);
        driver.launch(native, stream);
        if (n == 1) launch.end();
        if (n == 1) launch.end();  // one explicit end is enough
    }
    model.stream.synchronize();
    CHECK(model.right == 3 * kBlocks && model.wrong == 0);
    CHECK(device.memory().peak_bytes <= device.memory().budget_bytes);

    device.set_budget(100 * 1024);
    CHECK(status_of([&] { model.runtime.plan(); }) == SH_ERROR_INVALID_STATE);
    sh::Graph other = std::move(graph);
    CHECK(status_of([&] { graph.launch(stream); }) == SH_ERROR_INVALID_HANDLE);
    {
        sh::Launch first = other.launch(stream);
        CHECK(status_of([&] { other.launch(stream); }) == SH_ERROR_INVALID_STATE);
        const sh::Launch second = std::move(first);
    }
    sh_plan_options options = SH_PLAN_OPTIONS_INIT;
    options.flags = SH_PLAN_DROP_GRAPHS;
    model.runtime.plan(options);
    CHECK(status_of([&] { other.launch(stream); }) == SH_ERROR_STALE);
    driver.destroy(native);
}

void captures_end_by_scope(const Driver& driver, const sh::Device& device) {
    Model model(device);
    const sh_stream stream = model.stream.get();
    const auto begin = [&] { sh::Capture capture = model.runtime.capture(stream); };
    driver.begin(stream);
    CHECK(status_of(begin) == SH_ERROR_INVALID_STATE);  // there is no plan
    driver.destroy(driver.end(stream));
    model.runtime.plan();
    CHECK(status_of(begin) == SH_ERROR_INVALID_STATE);  // the stream does not capture
    driver.begin(stream);
    try {
        const sh::Capture capture = model.runtime.capture(stream);
        const sh::View view = model.runtime.acquire(model.blocks[0], stream);
        CHECK(status_of(begin) == SH_ERROR_INVALID_STATE);
        CHECK(status_of([&] { model.runtime.step(); }) == SH_ERROR_INVALID_STATE);
        throw 1;
    } catch (int) {
    }
    driver.destroy(driver.end(stream));
    model.runtime.plan();  // no graph holds the plan
    driver.begin(stream);
    {
        sh::Capture capture = model.runtime.capture(stream);
        {
            const sh::View view = model.runtime.acquire(model.blocks[0], stream);
            CHECK(status_of([&] { capture.end(); }) ==
                  SH_ERROR_INVALID_STATE);  // a view is held, and the capture goes on
        }
        const sh::Graph graph = capture.end();
        CHECK(graph.get() != nullptr && status_of([&] { capture.end(); }) == SH_ERROR_INVALID_HANDLE);
    }
    driver.destroy(driver.end(stream));
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    const Driver driver(argv[1]);
    CHECK(driver.library != nullptr);
    try {
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.page_bytes = 4096;
        options.budget_bytes = 128 * 1024;
        options.backend_path = argv[1];
        sh::Device device("capture", options);
        launches_stream_the_model(driver, device);
        captures_end_by_scope(driver, device);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "unexpected: %s\n", error.what());
        return 1;
    }
    return failed_checks != 0;
}
