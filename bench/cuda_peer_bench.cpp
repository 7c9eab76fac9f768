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

// A model on one device, streamed from one kind of memory.
struct Streamed {
    Streamed(const char* name, const sh_device_options& options, uint32_t kind, void* memory) : model(name, options) {
        model.add(std::vector<uint64_t>(kBlocks, kBlock), static_cast<char*>(memory), kind);
        uses = model.schedule(kBlocks * 1000, false);
        CHECK(sh_stream_create(model.device, &stream));
    }
    ~Streamed() {
        sh_runtime_destroy(std::exchange(model.runtime, nullptr));
        sh_stream_destroy(model.device, stream);
    }
    Streamed(const Streamed&) = delete;
    Streamed& operator=(const Streamed&) = delete;

    // Returns the bytes per second of steady steps. The steps begin when all threads have reached `start`.
    double speed(std::barrier<>& start) const {
        (void)model.steps_ms(uses, stream, 0, 2);
        start.arrive_and_wait();
        auto before = sh_sized<sh_runtime_stats>(), after = sh_sized<sh_runtime_stats>();
        CHECK(sh_runtime_get_stats(model.runtime, &before));
        const double ms = model.steps_ms(uses, stream, 0, kSteps);
        CHECK(sh_runtime_get_stats(model.runtime, &after));
        return static_cast<double>(after.bytes_to_device - before.bytes_to_device) / kSteps / ms * 1e3;
    }

    bench::Model model;
    std::vector<sh_use> uses;
    sh_stream stream = SH_STREAM_HOST;
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
    {
        CHECK_CUDA(cuda.set_current(peer));
        CUdeviceptr there = 0;
        CHECK_CUDA(cuda.allocate(&there, kBlocks * kBlock));
        CHECK_CUDA(cuda.set_current(own));
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.budget_bytes = 3 * kBlock;
        options.page_bytes = 8 * kMiB;
        const Streamed peer_model("cuda:0", options, SH_SOURCE_DEVICE, reinterpret_cast<void*>(there));
        CUdeviceptr here = 0;
        CHECK_CUDA(cuda.allocate(&here, kBlock));
        const CUstream stream = reinterpret_cast<CUstream>(peer_model.stream);
        std::barrier<> alone(1);
        const double raw_seconds = bench::seconds([&] {
            for (size_t i = 0; i < 4 * kBlocks; i++)
                CHECK_CUDA(cuda.copy_peer(here, own, there + i % kBlocks * kBlock, peer, kBlock, stream));
            CHECK_CUDA(cuda.synchronize(stream));
        });
        const double raw = 4.0 * kBlocks * kBlock / raw_seconds, streamed = peer_model.speed(alone);
        std::printf("from the peer GPU: %.1f GB/s, raw copy between the two %.1f GB/s, ratio %.3f\n", streamed / 1e9,
                    raw / 1e9, streamed / raw);
        CHECK_CUDA(cuda.deallocate(here));
    }
    const bench::PacedDevice first("cuda:0", kBlocks * kBlock, 0, 8 * kMiB, false),
        second("cuda:1", kBlocks * kBlock, 0, 8 * kMiB, false);  // with the pinned memory
    for (const bench::PacedDevice* subject : {&first, &second})
        CHECK(sh_device_set_budget(subject->device, 3 * kBlock));
    {
        const Streamed a("cuda:0", SH_DEVICE_OPTIONS_INIT, SH_SOURCE_POINTER, first.memory),
            b("cuda:1", SH_DEVICE_OPTIONS_INIT, SH_SOURCE_POINTER, second.memory);
        const CUcontext contexts[] = {own, peer};
        for (int round = 0; round < 3; round++) {
            const double raw = compare("raw copies from the host", [&](int k, std::barrier<>& start) {
                return raw_speed(cuda, contexts[k], (k ? second : first).memory, start);
            });
            const double streamed = compare("streams from the host",
                                            [&](int k, std::barrier<>& start) { return (k ? b : a).speed(start); });
            std::printf("both streams at once: %.3f of both raw copies at once\n", streamed / raw);
        }
    }
} catch (const std::exception& problem) {
    std::printf("skipped: %s\n", problem.what());
}
