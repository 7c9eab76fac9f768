// Uses two GPUs of one host. Compares streaming blocks to cuda:0 from the memory of cuda:1 with a raw copy between the
// two. Then streams from the host to both at once, and compares with each alone and with raw copies of the same memory
// at once. Reports "skipped" if there are no two GPUs.
#include <barrier>
#include <thread>
#include <utility>

#include "../tests/gpu/cuda_driver.h"
#include "measure.h"

namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kBlock = 256 * kMiB;
constexpr size_t kBlocks = 24;
constexpr int kSteps = 6;

void check_cuda(CUresult result, const char* call) {
    if (result == CUDA_SUCCESS) return;
    std::fprintf(stderr, "%s: CUDA error %d\n", call, static_cast<int>(result));
    std::exit(1);
}
#define CHECK_CUDA(call) check_cuda((call), #call)

sh_device* open(const char* name) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.budget_bytes = 3 * kBlock;
    options.page_bytes = 8 * kMiB;
    sh_device* device = nullptr;
    CHECK(sh_device_open(name, &options, &device));
    return device;
}

// A model on one device, streamed from one kind of memory.
struct Model {
    sh_device* device;
    sh_runtime* runtime = nullptr;
    sh_stream stream = SH_STREAM_HOST;
    std::vector<sh_block> blocks;

    Model(sh_device* on, uint32_t kind, char* memory) : device(on), blocks(kBlocks) {
        CHECK(sh_runtime_create(device, nullptr, &runtime));
        CHECK(sh_stream_create(device, &stream));
        std::vector<sh_use> uses(kBlocks, SH_USE_INIT);
        for (size_t i = 0; i < kBlocks; i++) {
            sh_segment segment = SH_SEGMENT_INIT;
            segment.kind = kind;
            segment.pointer = memory + i * kBlock;
            segment.bytes = kBlock;
            sh_block_desc desc = SH_BLOCK_DESC_INIT;
            desc.bytes = kBlock;
            desc.segments = &segment;
            desc.segment_count = 1;
            CHECK(sh_register_blocks(runtime, &desc, 1, &blocks[i]));
            uses[i].block = blocks[i];
            uses[i].compute_ns = 1000;
        }
        CHECK(sh_set_schedule(runtime, uses.data(), uses.size()));
    }
    ~Model() {
        sh_runtime_destroy(runtime);
        sh_stream_destroy(device, stream);
    }
    Model(const Model&) = delete;

    void step() const {
        CHECK(sh_step_begin(runtime, nullptr));
        for (const sh_block block : blocks) {
            sh_view view = SH_VIEW_INIT;
            CHECK(sh_acquire(runtime, block, stream, 0, &view));
            CHECK(sh_release(runtime, block, stream));
        }
        CHECK(sh_step_end(runtime));
    }
    // Returns the bytes per second of steady steps. The steps begin when all threads have reached `start`.
    double speed(std::barrier<>& start) const {
        for (int k = 0; k < 2; k++) step();
        CHECK(sh_stream_synchronize(device, stream));
        start.arrive_and_wait();
        sh_runtime_stats before = SH_RUNTIME_STATS_INIT, after = SH_RUNTIME_STATS_INIT;
        CHECK(sh_runtime_get_stats(runtime, &before));
        const double seconds = bench::seconds([&] {
            for (int k = 0; k < kSteps; k++) step();
            CHECK(sh_stream_synchronize(device, stream));
        });
        CHECK(sh_runtime_get_stats(runtime, &after));
        return static_cast<double>(after.bytes_to_device - before.bytes_to_device) / seconds;
    }
};

// Returns the bytes per second of the driver's own copies of the same memory into one block. There are as many copies
// as in the steps.
double raw_speed(const stagehand::test::Cuda& cuda, CUcontext context, const char* memory, std::barrier<>& start) {
    CHECK_CUDA(cuda.set_current(context));
    CUdeviceptr there = 0;
    CUstream stream = nullptr;
    CHECK_CUDA(cuda.allocate(&there, kBlock));
    CHECK_CUDA(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING));
    const auto copy = [&](size_t count) {
        for (size_t i = 0; i < count; i++)
            CHECK_CUDA(cuda.copy_to_device(there, memory + i % kBlocks * kBlock, kBlock, stream));
        CHECK_CUDA(cuda.synchronize(stream));
    };
    copy(kBlocks);
    start.arrive_and_wait();
    const double seconds = bench::seconds([&] { copy(kSteps * kBlocks); });
    CHECK_CUDA(cuda.stream_destroy(stream));
    CHECK_CUDA(cuda.deallocate(there));
    return static_cast<double>(kSteps * kBlocks * kBlock) / seconds;
}

// Prints the speeds of both alone, one after the other, and of both at once.
template <typename Speed>
double compare(const char* what, Speed speed) {
    double alone[2] = {}, at_once[2] = {};
    for (int k : {0, 1}) {
        std::barrier<> start(1);
        alone[k] = speed(k, start);
    }
    std::barrier<> start(2);
    std::thread other([&] { at_once[1] = speed(1, start); });
    at_once[0] = speed(0, start);
    other.join();
    const double ratio = (at_once[0] + at_once[1]) / (alone[0] + alone[1]);
    std::printf("%s: %.1f and %.1f GB/s alone, %.1f and %.1f GB/s at once, ratio %.3f\n", what, alone[0] / 1e9,
                alone[1] / 1e9, at_once[0] / 1e9, at_once[1] / 1e9, ratio);
    return at_once[0] + at_once[1];
}

}  // namespace

int main() try {
    stagehand::test::Cuda cuda;
    CUcontext own = nullptr, peer = nullptr;
    CHECK_CUDA(cuda.retain(&own, 0));
    if (cuda.retain(&peer, 1) != CUDA_SUCCESS) {
        std::printf("skipped: there is only one GPU\n");
        return 0;
    }
    sh_device *first = open("cuda:0"), *second = open("cuda:1");
    {
        CHECK_CUDA(cuda.set_current(peer));
        CUdeviceptr there = 0;
        CHECK_CUDA(cuda.allocate(&there, kBlocks * kBlock));
        CHECK_CUDA(cuda.set_current(own));
        Model model(first, SH_SOURCE_DEVICE, reinterpret_cast<char*>(there));
        CUdeviceptr here = 0;
        CHECK_CUDA(cuda.allocate(&here, kBlock));
        const CUstream stream = reinterpret_cast<CUstream>(model.stream);
        std::barrier<> alone(1);
        const double raw_seconds = bench::seconds([&] {
            for (size_t i = 0; i < 4 * kBlocks; i++)
                CHECK_CUDA(cuda.copy_peer(here, own, there + i % kBlocks * kBlock, peer, kBlock, stream));
            CHECK_CUDA(cuda.synchronize(stream));
        });
        const double raw = 4.0 * kBlocks * kBlock / raw_seconds, streamed = model.speed(alone);
        std::printf("from the peer GPU: %.1f GB/s, raw copy between the two %.1f GB/s, ratio %.3f\n", streamed / 1e9,
                    raw / 1e9, streamed / raw);
        CHECK_CUDA(cuda.deallocate(here));
    }
    void* memory[2] = {};
    CHECK(sh_host_alloc(first, kBlocks * kBlock, &memory[0], nullptr));
    CHECK(sh_host_alloc(second, kBlocks * kBlock, &memory[1], nullptr));
    {
        Model a(first, SH_SOURCE_POINTER, static_cast<char*>(memory[0])),
            b(second, SH_SOURCE_POINTER, static_cast<char*>(memory[1]));
        const CUcontext contexts[] = {own, peer};
        for (int round = 0; round < 3; round++) {
            const double raw = compare("raw copies from the host", [&](int k, std::barrier<>& start) {
                return raw_speed(cuda, contexts[k], static_cast<char*>(memory[k]), start);
            });
            const double streamed = compare("streams from the host",
                                            [&](int k, std::barrier<>& start) { return (k ? b : a).speed(start); });
            std::printf("both streams at once: %.3f of both raw copies at once\n", streamed / raw);
        }
    }
    CHECK(sh_host_free(first, memory[0]));
    CHECK(sh_host_free(second, memory[1]));
    sh_device_close(first);
    sh_device_close(second);
} catch (const std::exception& problem) {
    std::printf("skipped: %s\n", problem.what());
}
