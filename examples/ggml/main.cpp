// Computes a stack of layers in ggml twice: with its weights in the backend's own buffers, and with weights that stream
// through a budget. Both results must have the same bytes.
//
//     streamed_ggml
#include <ggml-alloc.h>
#include <ggml-cpu.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "streamed.h"

namespace {

constexpr int kLayers = 16, kWidth = 512, kHidden = 2048, kTokens = 8;
constexpr std::size_t kLayerBytes = 2 * sizeof(ggml_fp16_t) * kWidth * kHidden;
constexpr std::size_t kBudget = kLayers * kLayerBytes / 4;

template <typename T>
using Owned = std::unique_ptr<T, void (*)(T*)>;
using Context = Owned<ggml_context>;
using Buffer = Owned<ggml_backend_buffer>;
using Scheduler = Owned<ggml_backend_sched>;

template <typename T>
T* made(T* pointer, const char* what) {
    if (!pointer) throw std::runtime_error(std::string("could not make ") + what);
    return pointer;
}

Context new_context(int tensors) {
    const ggml_init_params parameters = {
        ggml_tensor_overhead() * static_cast<std::size_t>(tensors) + ggml_graph_overhead(), nullptr, true};
    return {made(ggml_init(parameters), "a context"), ggml_free};
}

// Layers of a feed-forward network: x + down(silu(up(norm(x)))).
struct Weights {
    explicit Weights(ggml_backend_buffer_type_t type) {
        for (int i = 0; i < kLayers; ++i) {
            up.push_back(ggml_new_tensor_2d(context.get(), GGML_TYPE_F16, kWidth, kHidden));
            down.push_back(ggml_new_tensor_2d(context.get(), GGML_TYPE_F16, kHidden, kWidth));
        }
        // The call that loaders of models make: one buffer for all weights.
        buffer.reset(made(ggml_backend_alloc_ctx_tensors_from_buft(context.get(), type), "the weights' buffer"));
        ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        std::mt19937 random(1);
        for (int i = 0; i < kLayers; ++i) {
            fill(up[static_cast<std::size_t>(i)], random);
            fill(down[static_cast<std::size_t>(i)], random);
        }
    }

    static void fill(ggml_tensor* tensor, std::mt19937& random) {
        std::vector<ggml_fp16_t> values(static_cast<std::size_t>(ggml_nelements(tensor)));
        std::normal_distribution<float> normal(0, 0.02f);
        for (ggml_fp16_t& value : values) value = ggml_fp32_to_fp16(normal(random));
        ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
    }

    Context context = new_context(2 * kLayers);
    Buffer buffer = {nullptr, ggml_backend_buffer_free};
    std::vector<ggml_tensor*> up, down;
};

// Computes the network on the first of `backends`, by ggml's own scheduler.
std::vector<float> compute(const Weights& weights, std::vector<ggml_backend_t> backends) {
    const Context context = new_context(8 * kLayers);
    ggml_tensor* const input = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, kWidth, kTokens);
    ggml_set_input(input);
    ggml_tensor* x = input;
    for (std::size_t i = 0; i < kLayers; ++i) {
        ggml_tensor* hidden = ggml_mul_mat(context.get(), weights.up[i], ggml_rms_norm(context.get(), x, 1e-6f));
        x = ggml_add(context.get(), x, ggml_mul_mat(context.get(), weights.down[i], ggml_silu(context.get(), hidden)));
    }
    ggml_set_output(x);
    ggml_cgraph* const graph = ggml_new_graph(context.get());
    ggml_build_forward_expand(graph, x);

    const Scheduler scheduler = {
        made(ggml_backend_sched_new(backends.data(), nullptr, static_cast<int>(backends.size()),
                                    GGML_DEFAULT_GRAPH_SIZE, false, false),
             "a scheduler"),
        ggml_backend_sched_free};
    if (!ggml_backend_sched_alloc_graph(scheduler.get(), graph)) throw std::runtime_error("no memory for the graph");
    std::vector<float> values(kWidth * kTokens);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
    ggml_backend_tensor_set(input, values.data(), 0, ggml_nbytes(input));
    if (ggml_backend_sched_graph_compute(scheduler.get(), graph) != GGML_STATUS_SUCCESS)
        throw std::runtime_error("the graph failed");
    ggml_backend_tensor_get(x, values.data(), 0, ggml_nbytes(x));
    return values;
}

void expect(bool holds, const char* what) {
    if (!holds) throw std::runtime_error(std::string("this does not hold: ") + what);
    std::puts(what);
}

void run() {
    const Owned<ggml_backend> cpu = {made(ggml_backend_cpu_init(), "the backend"), ggml_backend_free};
    const Weights resident(ggml_backend_cpu_buffer_type());
    const std::vector<float> wanted = compute(resident, {cpu.get()});

    // The processor computes, so host memory is the device here: see README.md for a GPU.
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.budget_bytes = kBudget;
    const stagehand::Device device("host", options);
    streamed::Model model(device, cpu.get(), kLayerBytes);
    const Weights weights(model.buffer_type());
    expect(ggml_backend_buffer_get_size(weights.buffer.get()) >= 4 * kBudget, "the weights are four times the budget");
    for (int step = 0; step < 4; ++step) {
        const std::vector<float> result = compute(weights, {model.backend(), cpu.get()});
        if (std::memcmp(result.data(), wanted.data(), result.size() * sizeof(float)) != 0)
            throw std::runtime_error("the streamed result differs in step " + std::to_string(step));
    }
    const sh_runtime_stats stats = model.runtime().stats();
    expect(stats.ring_bytes > 0 && stats.bytes_to_device > kLayers * kLayerBytes, "the weights stream through it");
    expect(device.memory().peak_bytes <= kBudget, "the device never held more than its budget");
    std::puts("every result is the same, bit by bit");
}

}  // namespace

int main() {
    try {
        run();
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "streamed_ggml: %s\n", error.what());
        return 1;
    }
}
