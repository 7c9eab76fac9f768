#include "cuda_driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "exit_code.h"
#include "model/quantity.h"

namespace stagehand::cli::bench {

// Handles are pointers, and results and devices are integers, so CUDA's headers are not needed.
struct CudaDriver::Calls {
    int (*device_get)(int* device, int number) = nullptr;
    int (*context_retain)(void** context, int device) = nullptr;
    int (*context_release)(int device) = nullptr;
    int (*context_push)(void* context) = nullptr;
    int (*context_pop)(void** context) = nullptr;
    int (*error_name)(int result, const char** name) = nullptr;
    int (*host_alloc)(void** memory, std::size_t bytes, unsigned flags) = nullptr;
    int (*host_free)(void* memory) = nullptr;
    int (*copy_to_device)(std::uint64_t to, const void* from, std::size_t bytes, void* stream) = nullptr;
    int (*copy_to_host)(void* to, std::uint64_t from, std::size_t bytes, void* stream) = nullptr;
    int (*synchronize)(void* stream) = nullptr;
    int (*begin_capture)(void* stream, int mode) = nullptr;
    int (*end_capture)(void* stream, void** graph) = nullptr;
    int (*instantiate)(void** instance, void* graph, unsigned long long flags) = nullptr;
    int (*launch)(void* instance, void* stream) = nullptr;
    int (*destroy_instance)(void* instance) = nullptr;
    int (*destroy_graph)(void* graph) = nullptr;
};

namespace {

constexpr const char* file_name = "libcuda.so.1";
constexpr int thread_local_mode = 1;  // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL

void* native(sh_stream stream) { return reinterpret_cast<void*>(stream); }

// Looks up calls by name, until one is missing.
class Lookup {
public:
    explicit Lookup(void* file) : file_(file) {}

    template <typename Function>
    void operator()(const char* name, Function*& function) {
        function = reinterpret_cast<Function*>(dlsym(file_, name));
        if (function == nullptr && missing_.empty()) missing_ = name;
    }
    const std::string& missing() const { return missing_; }

private:
    void* file_;
    std::string missing_;
};

}  // namespace

std::unique_ptr<CudaDriver> CudaDriver::open(const std::string& device_name, std::string* reason) {
    const std::string prefix = "cuda:";
    if (device_name.compare(0, prefix.size(), prefix) != 0) {
        *reason = fmt::format("{} is not a CUDA device", device_name);
        return nullptr;
    }
    // Never closed, because the backend uses the same library.
    void* const file = dlopen(file_name, RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr) {
        *reason = dlerror();
        return nullptr;
    }
    auto calls = std::make_unique<Calls>();
    Lookup find(file);
    find("cuDeviceGet", calls->device_get);
    find("cuDevicePrimaryCtxRetain", calls->context_retain);
    find("cuDevicePrimaryCtxRelease_v2", calls->context_release);
    find("cuCtxPushCurrent_v2", calls->context_push);
    find("cuCtxPopCurrent_v2", calls->context_pop);
    find("cuGetErrorName", calls->error_name);
    find("cuMemHostAlloc", calls->host_alloc);
    find("cuMemFreeHost", calls->host_free);
    find("cuMemcpyHtoDAsync_v2", calls->copy_to_device);
    find("cuMemcpyDtoHAsync_v2", calls->copy_to_host);
    find("cuStreamSynchronize", calls->synchronize);
    find("cuStreamBeginCapture_v2", calls->begin_capture);
    find("cuStreamEndCapture", calls->end_capture);
    find("cuGraphInstantiateWithFlags", calls->instantiate);
    find("cuGraphLaunch", calls->launch);
    find("cuGraphExecDestroy", calls->destroy_instance);
    find("cuGraphDestroy", calls->destroy_graph);
    if (!find.missing().empty()) {
        *reason = fmt::format("{} has no {}", file_name, find.missing());
        return nullptr;
    }
    std::unique_ptr<CudaDriver> driver(new CudaDriver);
    driver->calls_ = std::move(calls);
    const Calls& cuda = *driver->calls_;
    void* context = nullptr;
    driver->check(cuda.device_get(&driver->device_, std::atoi(device_name.c_str() + prefix.size())), "cuDeviceGet");
    driver->check(cuda.context_retain(&context, driver->device_), "cuDevicePrimaryCtxRetain");
    driver->retained_ = true;
    driver->check(cuda.context_push(context), "cuCtxPushCurrent");
    return driver;
}

CudaDriver::~CudaDriver() {
    if (retained_) {
        void* context = nullptr;
        calls_->context_pop(&context);
        calls_->context_release(device_);
    }
}

void CudaDriver::check(int result, const char* call) const {
    if (result == 0) return;
    const char* name = nullptr;
    calls_->error_name(result, &name);
    throw CommandError(ExitCode::device, fmt::format("{}: {}", call, name ? name : "an error without a name"));
}

void CudaDriver::copy_to_device(std::uint64_t to, const void* from, std::uint64_t bytes, int times) const {
    for (int i = 0; i < times; ++i) check(calls_->copy_to_device(to, from, bytes, nullptr), "cuMemcpyHtoDAsync");
    check(calls_->synchronize(nullptr), "cuStreamSynchronize");
}

void CudaDriver::copy_to_host(void* to, std::uint64_t from, std::uint64_t bytes, int times) const {
    for (int i = 0; i < times; ++i) check(calls_->copy_to_host(to, from, bytes, nullptr), "cuMemcpyDtoHAsync");
    check(calls_->synchronize(nullptr), "cuStreamSynchronize");
}

CudaDriver::Pinned::Pinned(const CudaDriver& driver, std::uint64_t bytes) : driver_(driver) {
    driver.check(driver.calls_->host_alloc(&memory_, bytes, 0), "cuMemHostAlloc");
}

CudaDriver::Pinned::~Pinned() { driver_.calls_->host_free(memory_); }

void CudaDriver::Step::begin() {
    driver_.check(driver_.calls_->begin_capture(native(stream_), thread_local_mode), "cuStreamBeginCapture");
    try {
        cli::check(sh_capture_begin(runtime_, stream_), "capturing a step");
    } catch (...) {
        void* graph = nullptr;
        driver_.calls_->end_capture(native(stream_), &graph);
        throw;
    }
}

void CudaDriver::Step::give_up() {
    (void)!sh_capture_end(runtime_, stream_, nullptr);  // the capture has failed anyway
    void* graph = nullptr;
    if (driver_.calls_->end_capture(native(stream_), &graph) == 0 && graph != nullptr)
        driver_.calls_->destroy_graph(graph);
}

void CudaDriver::Step::end() {
    const Calls& cuda = *driver_.calls_;
    const sh_status recorded = sh_capture_end(runtime_, stream_, &graph_);
    const std::string why = recorded == SH_OK ? std::string() : library_message(recorded);
    void* graph = nullptr;
    const int captured = cuda.end_capture(native(stream_), &graph);
    int instantiated = 0;
    if (captured == 0 && graph != nullptr) {
        instantiated = cuda.instantiate(&instance_, graph, 0);
        cuda.destroy_graph(graph);
    }
    if (recorded == SH_OK && captured == 0 && instantiated == 0) return;
    sh_graph_destroy(graph_);
    if (recorded != SH_OK) throw CommandError(ExitCode::device, fmt::format("capturing a step: {}", why));
    driver_.check(captured, "cuStreamEndCapture");
    driver_.check(instantiated, "cuGraphInstantiate");
}

CudaDriver::Step::~Step() {
    sh_graph_destroy(graph_);
    driver_.calls_->destroy_instance(instance_);
}

void CudaDriver::Step::launch() const {
    cli::check(sh_graph_enter(graph_, stream_), "entering a graph");
    const int launched = driver_.calls_->launch(instance_, native(stream_));
    cli::check(sh_graph_leave(graph_, stream_), "leaving a graph");
    driver_.check(launched, "cuGraphLaunch");
}

std::unique_ptr<DeviceCopies> DeviceCopies::open(sh_device* device, std::string* reason) {
    const sh_device_caps caps = device_capabilities(device);
    std::unique_ptr<CudaDriver> driver;
    if ((caps.flags & SH_DEVICE_HOST_ADDRESSABLE) == 0) {
        driver = CudaDriver::open(caps.name, reason);
        if (!driver) return nullptr;
    }
    return std::unique_ptr<DeviceCopies>(new DeviceCopies(std::move(driver)));
}

void DeviceCopies::to_device(std::uint64_t to, const void* from, std::uint64_t bytes, int times) const {
    if (driver_) {
        driver_->copy_to_device(to, from, bytes, times);
        return;
    }
    for (int i = 0; i < times; ++i) std::memcpy(reinterpret_cast<void*>(to), from, bytes);
}

void DeviceCopies::to_host(void* to, std::uint64_t from, std::uint64_t bytes, int times) const {
    if (driver_) {
        driver_->copy_to_host(to, from, bytes, times);
        return;
    }
    for (int i = 0; i < times; ++i) std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
}

}  // namespace stagehand::cli::bench
