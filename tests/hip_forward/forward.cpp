// libamdhip64.so for tests: the entry points of HIP that the plugin uses. Each of them forwards to CUDA's driver.
// HIP_FORWARD_VERSION is the major version of HIP that this library imitates. It has no virtual memory before version
// 6.
#include <map>
#include <memory>
#include <mutex>
#include <utility>

// The headers' versions declare these functions differently. Here they are declared as the driver of
// HIP_FORWARD_VERSION has them.
#define hipMemcpyHtoDAsync declared_hipMemcpyHtoDAsync
#define hipMemCreate declared_hipMemCreate
#define hipMemGetAllocationGranularity declared_hipMemGetAllocationGranularity
#define __HIP_DISABLE_CPP_FUNCTIONS__ 1
#include "translate.h"
#undef hipMemcpyHtoDAsync
#undef hipMemCreate
#undef hipMemGetAllocationGranularity

#include "gpu/driver.h"

#define HIP_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace hip_forward;
using stagehand::gpu::driver;

thread_local hipError_t last_error = hipSuccess;
thread_local int current_device = 0;

hipError_t done(hipError_t error) {
    if (error != hipSuccess) last_error = error;
    return error;
}
hipError_t done(CUresult result) { return done(hip_error(result)); }

// Returns the device's context, which lives as long as the process.
CUcontext context_of(int device) {
    static std::mutex mutex;
    static std::map<int, CUcontext> contexts;
    std::lock_guard lock(mutex);
    auto& context = contexts[device];
    if (!context && driver()->context_retain(&context, device) != CUDA_SUCCESS) context = nullptr;
    return context;
}

// A call uses the thread's device, as in HIP. Returns false if there is no device.
bool enter() {
    if (!driver()) return false;
    const CUcontext wanted = context_of(current_device);
    CUcontext current = nullptr;
    driver()->context_current(&current);
    return wanted && (current == wanted || driver()->context_push(wanted) == CUDA_SUCCESS);
}

template <class Call>
hipError_t forward(Call call) {
    return enter() ? done(call()) : done(hipErrorNoDevice);
}

CUstream cuda(hipStream_t stream) { return reinterpret_cast<CUstream>(stream); }
CUevent cuda(hipEvent_t event) { return reinterpret_cast<CUevent>(event); }
CUdeviceptr cuda(void* address) { return reinterpret_cast<CUdeviceptr>(address); }

struct Callback {
    hipStreamCallback_t fn;
    hipStream_t stream;
    void* data;
};

void call_back(void* data) {
    const std::unique_ptr<Callback> callback(static_cast<Callback*>(data));
    callback->fn(callback->stream, hipSuccess, callback->data);
}

}  // namespace

HIP_EXPORT const char* hipGetErrorName(hipError_t error) { return error_name(error); }

HIP_EXPORT const char* hipGetErrorString(hipError_t error) {
    const char* text = nullptr;
    if (!driver() || driver()->error_text(cuda_result(error), &text) != CUDA_SUCCESS) return error_name(error);
    return text;
}

HIP_EXPORT hipError_t hipGetLastError() { return std::exchange(last_error, hipSuccess); }

HIP_EXPORT hipError_t hipRuntimeGetVersion(int* version) {
    *version = HIP_FORWARD_VERSION * 10'000'000 + 200'000;
    return hipSuccess;
}

HIP_EXPORT hipError_t hipGetDeviceCount(int* count) {
    *count = 0;
    if (!driver()) return done(hipErrorNoDevice);
    if (const CUresult result = driver()->device_count(count); result != CUDA_SUCCESS) return done(result);
    return done(*count ? hipSuccess : hipErrorNoDevice);
}

HIP_EXPORT hipError_t hipDeviceGet(hipDevice_t* device, int ordinal) {
    return driver() ? done(driver()->device_get(device, ordinal)) : done(hipErrorNoDevice);
}

HIP_EXPORT hipError_t hipDeviceGetName(char* name, int bytes, hipDevice_t device) {
    return driver() ? done(driver()->device_name(name, bytes, device)) : done(hipErrorNoDevice);
}

HIP_EXPORT hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device) {
    CUdevice_attribute known;
    if (!cuda_attribute(attribute, HIP_FORWARD_VERSION, &known)) return done(hipErrorInvalidValue);
    return driver() ? done(driver()->device_attribute(value, known, device)) : done(hipErrorNoDevice);
}

HIP_EXPORT hipError_t hipGetDevice(int* device) {
    *device = current_device;
    return driver() ? hipSuccess : done(hipErrorNoDevice);
}

HIP_EXPORT hipError_t hipSetDevice(int device) {
    int count = 0;
    if (!driver() || driver()->device_count(&count) != CUDA_SUCCESS) return done(hipErrorNoDevice);
    if (device < 0 || device >= count) return done(hipErrorInvalidDevice);
    current_device = device;
    return hipSuccess;
}

HIP_EXPORT hipError_t hipMemGetInfo(size_t* free, size_t* total) {
    return forward([&] { return driver()->memory_info(free, total); });
}

HIP_EXPORT hipError_t hipMalloc(void** address, size_t bytes) {
    CUdeviceptr at = 0;
    const hipError_t error = forward([&] { return driver()->allocate(&at, bytes); });
    *address = reinterpret_cast<void*>(at);
    return error;
}

HIP_EXPORT hipError_t hipFree(void* address) {
    return forward([&] { return driver()->deallocate(cuda(address)); });
}

HIP_EXPORT hipError_t hipHostRegister(void* memory, size_t bytes, unsigned flags) {
    unsigned known = 0;
    if (!cuda_register_flags(flags, &known)) return done(hipErrorInvalidValue);
    return forward([&] { return driver()->host_register(memory, bytes, known); });
}

HIP_EXPORT hipError_t hipHostUnregister(void* memory) {
    return forward([&] { return driver()->host_unregister(memory); });
}

HIP_EXPORT hipError_t hipPointerGetAttribute(void* value, hipPointer_attribute attribute, hipDeviceptr_t pointer) {
    CUpointer_attribute known;
    if (!cuda_pointer_attribute(attribute, &known)) return done(hipErrorInvalidValue);
    // Unknown memory is an error here. In the CUDA call that the CUDA plugin makes it is no error.
    unsigned type = 0;
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, known};
    void* answers[] = {&type, value};
    const hipError_t error = forward([&] { return driver()->pointer_attributes(2, asked, answers, cuda(pointer)); });
    if (error != hipSuccess) return error;
    if (!type) return done(hipErrorInvalidValue);
    if (known == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *static_cast<unsigned*>(value) = hip_memory_type(type, HIP_FORWARD_VERSION);
    return hipSuccess;
}

HIP_EXPORT hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) {
    unsigned known = 0;
    if (!cuda_stream_flags(flags, &known)) return done(hipErrorInvalidValue);
    return forward([&] { return driver()->stream_create(reinterpret_cast<CUstream*>(stream), known); });
}

HIP_EXPORT hipError_t hipStreamDestroy(hipStream_t stream) {
    return forward([&] { return driver()->stream_destroy(cuda(stream)); });
}

HIP_EXPORT hipError_t hipStreamSynchronize(hipStream_t stream) {
    return forward([&] { return driver()->stream_synchronize(cuda(stream)); });
}

HIP_EXPORT hipError_t hipDeviceSynchronize() {
    return forward([] { return driver()->device_synchronize(); });
}

HIP_EXPORT hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned flags) {
    if (flags) return done(hipErrorInvalidValue);
    return forward([&] { return driver()->stream_wait_event(cuda(stream), cuda(event), 0); });
}

HIP_EXPORT hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus* status) {
    CUstreamCaptureStatus known = CU_STREAM_CAPTURE_STATUS_NONE;
    const hipError_t error = forward([&] { return driver()->stream_is_capturing(cuda(stream), &known); });
    *status = hip_capture_status(known);
    return error;
}

HIP_EXPORT hipError_t hipStreamAddCallback(hipStream_t stream, hipStreamCallback_t fn, void* data, unsigned flags) {
    if (flags || !fn) return done(hipErrorInvalidValue);
    auto callback = std::make_unique<Callback>(Callback{fn, stream, data});
    const hipError_t error = forward([&] { return driver()->launch_host(cuda(stream), call_back, callback.get()); });
    if (error == hipSuccess) (void)callback.release();  // call_back() frees it
    return error;
}

HIP_EXPORT hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags) {
    unsigned known = 0;
    if (!cuda_event_flags(flags, &known)) return done(hipErrorInvalidValue);
    return forward([&] { return driver()->event_create(reinterpret_cast<CUevent*>(event), known); });
}

HIP_EXPORT hipError_t hipEventDestroy(hipEvent_t event) {
    return forward([&] { return driver()->event_destroy(cuda(event)); });
}

HIP_EXPORT hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
    return forward([&] { return driver()->event_record(cuda(event), cuda(stream)); });
}

HIP_EXPORT hipError_t hipEventQuery(hipEvent_t event) {
    return forward([&] { return driver()->event_query(cuda(event)); });
}

HIP_EXPORT hipError_t hipEventSynchronize(hipEvent_t event) {
    return forward([&] { return driver()->event_synchronize(cuda(event)); });
}

HIP_EXPORT hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t begin, hipEvent_t end) {
    return forward([&] { return driver()->event_elapsed(milliseconds, cuda(begin), cuda(end)); });
}

HIP_EXPORT hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t to, const void* from, size_t bytes, hipStream_t stream) {
    return forward([&] { return driver()->copy_to_device(cuda(to), from, bytes, cuda(stream)); });
}

HIP_EXPORT hipError_t hipMemcpyDtoHAsync(void* to, hipDeviceptr_t from, size_t bytes, hipStream_t stream) {
    return forward([&] { return driver()->copy_to_host(to, cuda(from), bytes, cuda(stream)); });
}

HIP_EXPORT hipError_t hipMemcpyDtoDAsync(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes, hipStream_t stream) {
    return forward([&] { return driver()->copy_on_device(cuda(to), cuda(from), bytes, cuda(stream)); });
}

HIP_EXPORT hipError_t hipMemsetD8Async(hipDeviceptr_t to, unsigned char value, size_t bytes, hipStream_t stream) {
    return forward([&] { return driver()->fill(cuda(to), value, bytes, cuda(stream)); });
}

HIP_EXPORT hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode* mode) {
    CUstreamCaptureMode known;
    if (!cuda_capture_mode(*mode, &known)) return done(hipErrorInvalidValue);
    const hipError_t error = driver() ? done(driver()->exchange_capture_mode(&known)) : done(hipErrorNoDevice);
    *mode = hip_capture_mode(known);
    return error;
}

#if HIP_FORWARD_VERSION >= 6

HIP_EXPORT hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t fn, void* data) {
    return forward([&] { return driver()->launch_host(cuda(stream), fn, data); });
}

namespace {

// The layout of hipMemAllocationProp since version 6.0.
struct Properties {
    hipMemAllocationType type;
    hipMemAllocationHandleType handle_type;
    hipMemLocation location;
    void* win32;
    unsigned char compression, rdma;
    unsigned short usage;
};

bool cuda_properties(const Properties& from, CUmemAllocationProp* out) {
    *out = {};
    out->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    out->location = {};
    out->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    out->location.id = from.location.id;
    return from.type == hipMemAllocationTypePinned && from.handle_type == hipMemHandleTypeNone && !from.win32 &&
           from.location.type == hipMemLocationTypeDevice && !from.compression && !from.rdma && !from.usage;
}

}  // namespace

HIP_EXPORT hipError_t hipMemGetAllocationGranularity(size_t* granularity, const Properties* properties,
                                                     hipMemAllocationGranularity_flags option) {
    CUmemAllocationProp known;
    if (!cuda_properties(*properties, &known)) return done(hipErrorInvalidValue);
    const auto which = option == hipMemAllocationGranularityMinimum ? CU_MEM_ALLOC_GRANULARITY_MINIMUM
                                                                    : CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    return forward([&] { return driver()->page_granularity(granularity, &known, which); });
}

HIP_EXPORT hipError_t hipMemCreate(hipMemGenericAllocationHandle_t* page, size_t bytes, const Properties* properties,
                                   unsigned long long flags) {
    CUmemAllocationProp known;
    if (flags || !cuda_properties(*properties, &known)) return done(hipErrorInvalidValue);
    CUmemGenericAllocationHandle handle = 0;
    const hipError_t error = forward([&] { return driver()->page_create(&handle, bytes, &known, 0); });
    *page = reinterpret_cast<hipMemGenericAllocationHandle_t>(handle);
    return error;
}

HIP_EXPORT hipError_t hipMemRelease(hipMemGenericAllocationHandle_t page) {
    return forward([&] { return driver()->page_release(reinterpret_cast<CUmemGenericAllocationHandle>(page)); });
}

HIP_EXPORT hipError_t hipMemAddressReserve(void** address, size_t bytes, size_t alignment, void* wish,
                                           unsigned long long flags) {
    CUdeviceptr at = 0;
    const hipError_t error = forward([&] { return driver()->range_reserve(&at, bytes, alignment, cuda(wish), flags); });
    *address = reinterpret_cast<void*>(at);
    return error;
}

HIP_EXPORT hipError_t hipMemAddressFree(void* address, size_t bytes) {
    return forward([&] { return driver()->range_free(cuda(address), bytes); });
}

HIP_EXPORT hipError_t hipMemMap(void* address, size_t bytes, size_t offset, hipMemGenericAllocationHandle_t page,
                                unsigned long long flags) {
    return forward([&] {
        return driver()->page_map(cuda(address), bytes, offset, reinterpret_cast<CUmemGenericAllocationHandle>(page),
                                  flags);
    });
}

HIP_EXPORT hipError_t hipMemUnmap(void* address, size_t bytes) {
    return forward([&] { return driver()->range_unmap(cuda(address), bytes); });
}

HIP_EXPORT hipError_t hipMemSetAccess(void* address, size_t bytes, const hipMemAccessDesc* access, size_t count) {
    if (count != 1 || access->location.type != hipMemLocationTypeDevice ||
        access->flags != hipMemAccessFlagsProtReadWrite)
        return done(hipErrorInvalidValue);
    CUmemAccessDesc known = {};
    known.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    known.location.id = access->location.id;
    known.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return forward([&] { return driver()->set_access(cuda(address), bytes, &known, 1); });
}

#endif
