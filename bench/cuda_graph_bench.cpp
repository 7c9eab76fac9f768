// Compares a captured step with the same step made call by call, on cuda:0. The model has the shapes of an 8B model in
// pinned memory, and a kernel does the computing. Every byte that launches bring is compared after each row.
#include <cstring>
#include <utility>

#include "../tests/gpu/cuda_driver.h"
#include "measure.h"

namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr int kWarm = 2, kPasses = 6;

struct Result {
    double pass_ms = 0;  // from one pass to the next, on the device
    double host_us = 0;  // time of the engine's thread in the median pass
};

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
}

void check_cuda(CUresult result, const char* call) {
    if (result == CUDA_SUCCESS) return;
    std::fprintf(stderr, "%s: CUDA error %d\n", call, static_cast<int>(result));
    std::exit(1);
}
#define CHECK_CUDA(call) check_cuda((call), #call)

struct Subject {
    stagehand::test::Cuda cuda;
    sh_device* device = nullptr;
    sh_runtime* runtime = nullptr;
    sh_stream stream = SH_STREAM_HOST;
    std::vector<sh_use> uses;
    CUdeviceptr seen = 0;  // room for all bytes of the model

    // `look`: copies all bytes to `seen`.
    void pass(bool look = false) const {
        CUdeviceptr to = seen;
        for (const sh_use& use : uses) {
            sh_view view = SH_VIEW_INIT;
            CHECK(sh_acquire(runtime, use.block, stream, 0, &view));
            if (use.compute_ns)
                CHECK(sh_stream_launch(device, stream, nullptr, nullptr, static_cast<int64_t>(use.compute_ns)));
            if (look)
                CHECK_CUDA(cuda.copy_on_device(to, reinterpret_cast<CUdeviceptr>(view.address), view.bytes,
                                               reinterpret_cast<CUstream>(stream)));
            to += view.bytes;
            CHECK(sh_release(runtime, use.block, stream));
        }
    }

    template <class Pass>
    Result measure(Pass&& one) const {
        Result result;
        uint64_t began = 0, ended = 0;
        std::vector<double> host_us;
        for (int k = 0; k < kWarm + kPasses; k++) {
            if (k == kWarm) {
                CHECK(sh_stream_synchronize(device, stream));
                CHECK(sh_device_get_clock(device, &began));
                host_us.clear();
            }
            host_us.push_back(bench::seconds(one) * 1e6);
        }
        CHECK(sh_stream_synchronize(device, stream));
        CHECK(sh_device_get_clock(device, &ended));
        result.pass_ms = static_cast<double>(ended - began) / kPasses / 1e6;
        result.host_us = median(host_us);
        return result;
    }
};

// A pass that was captured.
struct Captured {
    const Subject& subject;
    sh_graph* graph = nullptr;
    CUgraph native = nullptr;
    CUgraphExec instance = nullptr;

    Captured(const Subject& of, bool look) : subject(of) {
        const CUstream stream = reinterpret_cast<CUstream>(subject.stream);
        CHECK_CUDA(subject.cuda.begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        CHECK(sh_capture_begin(subject.runtime, subject.stream));
        subject.pass(look);
        CHECK(sh_capture_end(subject.runtime, subject.stream, &graph));
        CHECK_CUDA(subject.cuda.end_capture(stream, &native));
        CHECK_CUDA(subject.cuda.instantiate(&instance, native, 0));
    }
    ~Captured() {
        sh_graph_destroy(graph);
        subject.cuda.destroy_instance(instance);
        subject.cuda.destroy(native);
    }
    Captured(const Captured&) = delete;
    Captured& operator=(const Captured&) = delete;

    double launch() const {  // returns the driver's part, in us
        CHECK(sh_graph_enter(graph, subject.stream));
        const CUstream stream = reinterpret_cast<CUstream>(subject.stream);
        const double us = bench::seconds([&] { CHECK_CUDA(subject.cuda.launch(instance, stream)); }) * 1e6;
        CHECK(sh_graph_leave(graph, subject.stream));
        return us;
    }
};

void compare(const Subject& subject, const char* memory, uint64_t total) {
    constexpr uint64_t kPart = 256 * kMiB;
    const Captured look(subject, true);
    look.launch();
    CHECK(sh_stream_synchronize(subject.device, subject.stream));
    std::vector<char> found(kPart);
    for (uint64_t at = 0; at < total; at += kPart) {
        const uint64_t bytes = std::min(kPart, total - at);
        CHECK_CUDA(subject.cuda.copy_to_host(found.data(), subject.seen + at, bytes));
        if (std::memcmp(found.data(), memory + at, bytes) == 0) continue;
        std::fprintf(stderr, "a launch has brought other bytes\n");
        std::exit(1);
    }
}

void run(bench::Model& model, Subject& subject, double budget, double ratio, const char* memory, uint64_t total) {
    CHECK(sh_device_set_budget(model.device, static_cast<uint64_t>(static_cast<double>(total) * budget)));
    sh_plan_info plan = SH_PLAN_INFO_INIT;
    subject.uses = model.schedule(1, false);
    CHECK(sh_plan(model.runtime, nullptr, &plan));  // reports the speed of the link
    const double copy_ns =
        static_cast<double>(total) * (1 - budget) / static_cast<double>(plan.link_bytes_per_second) * 1e9;
    subject.uses = model.schedule(static_cast<uint64_t>(copy_ns * ratio), false);
    CHECK(sh_plan(model.runtime, nullptr, &plan));
    const Result eager = subject.measure([&] {
        CHECK(sh_step_begin(model.runtime, nullptr));
        subject.pass();
        CHECK(sh_step_end(model.runtime));
    });
    const Captured graph(subject, false);
    size_t nodes = 0;
    CHECK_CUDA(subject.cuda.graph_nodes(graph.native, nullptr, &nodes));
    std::vector<double> driver_us;
    sh_runtime_stats before = SH_RUNTIME_STATS_INIT, after = SH_RUNTIME_STATS_INIT;
    CHECK(sh_runtime_get_stats(model.runtime, &before));
    const Result captured = subject.measure([&] { driver_us.push_back(graph.launch()); });
    CHECK(sh_runtime_get_stats(model.runtime, &after));
    compare(subject, memory, total);
    const double copied = static_cast<double>(after.bytes_to_device - before.bytes_to_device) / (kWarm + kPasses);
    std::printf("%4.0f %%  %5.2f  %9.2f  %9.2f  %9.2f  %6.3f  %9.1f  %9.1f  %9.1f  %5zu  %6.1f\n", budget * 100, ratio,
                static_cast<double>(plan.step_ns) / 1e6, eager.pass_ms, captured.pass_ms,
                captured.pass_ms / eager.pass_ms, eager.host_us, captured.host_us,
                median({driver_us.begin() + kWarm, driver_us.end()}), nodes, copied / captured.pass_ms / 1e6);
    std::fflush(stdout);
}

}  // namespace

int main() try {
    std::vector<uint64_t> sizes = {1002 * kMiB};
    sizes.insert(sizes.end(), 32, 416 * kMiB);
    sizes.push_back(1002 * kMiB);
    uint64_t total = 0;
    for (const uint64_t size : sizes) total += size;
    Subject subject;
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.budget_bytes = total;
    options.page_bytes = 8 * kMiB;
    bench::Model model("cuda:0", options);
    void* memory = nullptr;
    CHECK(sh_host_alloc(model.device, total, &memory, nullptr));
    for (uint64_t i = 0; i < total / sizeof(uint64_t); i++) static_cast<uint64_t*>(memory)[i] = i * 0x9e3779b97f4a7c15;
    model.add(sizes, static_cast<char*>(memory));
    subject.device = model.device;
    subject.runtime = model.runtime;
    CHECK(sh_stream_create(model.device, &subject.stream));
    CHECK_CUDA(subject.cuda.allocate(&subject.seen, total));
    std::printf(
        "budget compute/copy plan ms   eager ms   graph ms  ratio  eager host us  graph host us  of it the driver  "
        "nodes  graph GB/s\n");
    for (const double budget : {0.25, 0.5, 0.9})
        for (const double ratio : {0.25, 1.0, 4.0})
            run(model, subject, budget, ratio, static_cast<const char*>(memory), total);
    CHECK_CUDA(subject.cuda.deallocate(subject.seen));
    sh_runtime_destroy(std::exchange(model.runtime, nullptr));
    sh_stream_destroy(model.device, subject.stream);
    CHECK(sh_host_free(model.device, memory));
} catch (const std::exception& problem) {
    std::printf("skipped: %s\n", problem.what());
}
