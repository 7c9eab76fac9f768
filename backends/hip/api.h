// The HIP names of the driver interface that backends/gpu uses, for AMD's GPUs. Types and constants come from the
// headers of any HIP version since 5.2. Entry points are looked up at run time, so nothing is linked. A plugin that was
// built against one version may meet the driver of another version. If the versions differ, the code follows the
// driver's version. Names that headers may lack are declared here.
#pragma once

// Only the C interface, because an overloaded function has no single address.
#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__ 1
#endif
#ifndef __HIP_DISABLE_CPP_FUNCTIONS__
#define __HIP_DISABLE_CPP_FUNCTIONS__ 1
#endif
#include <hip/hip_runtime_api.h>
#include <stagehand/device.h>

#include <cstddef>
#include <cstdint>
#include <memory>

// Names the namespace of backends/gpu, so that one library can hold both backends.
#define SH_GPU_NAMESPACE stagehand::gpu::inline hip

namespace SH_GPU_NAMESPACE::api {

constexpr char kBackendName[] = "hip";
// PyTorch and other frameworks bring their own copy of the driver, with one of these sonames. A copy that the process
// has loaded already comes first.
constexpr const char* kDriverFiles[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"};

using Result = hipError_t;
using DeviceIndex = hipDevice_t;
using Context = int;  // the current device of a thread; HIP's own contexts are deprecated
using Address = hipDeviceptr_t;
using Stream = hipStream_t;
using Event = hipEvent_t;
using Page = hipMemGenericAllocationHandle_t;
using CaptureMode = hipStreamCaptureMode;

constexpr Result kSuccess = hipSuccess;
constexpr Result kNotReady = hipErrorNotReady;
constexpr Result kOutOfMemory = hipErrorOutOfMemory;
constexpr Result kNotSupported = hipErrorNotSupported;
constexpr Result kInvalidHandle = hipErrorInvalidHandle;
constexpr uint32_t kDeviceKind = SH_DEVICE_KIND_ROCM;
// A different stream on each thread.
constexpr uint32_t kThreadStream = 2;  // hipStreamPerThread
using CaptureStatus = hipStreamCaptureStatus;
constexpr CaptureStatus kNotCapturing = hipStreamCaptureStatusNone;
constexpr CaptureMode kRelaxed = hipStreamCaptureModeRelaxed;

// The device cannot be used any more after these errors.
inline bool is_lost(Result result) {
    return result == hipErrorIllegalAddress || result == hipErrorLaunchFailure || result == hipErrorECCNotCorrectable ||
           result == hipErrorLaunchTimeOut || result == hipErrorContextIsDestroyed || result == hipErrorAssert ||
           result == hipErrorDeinitialized;
}

// The properties of a page, in the layout of drivers since 6.0. The headers of 5.2 have the members in another order.
struct PageProperties {
    hipMemAllocationType type;
    hipMemAllocationHandleType requested_handle_type;
    hipMemLocation location;
    void* win32_handle_metadata;
    struct {
        unsigned char compression_type;
        unsigned char gpu_direct_rdma_capable;
        unsigned short usage;
    } flags;
};
#if HIP_VERSION_MAJOR >= 6
static_assert(sizeof(PageProperties) == sizeof(hipMemAllocationProp));
static_assert(offsetof(PageProperties, type) == offsetof(hipMemAllocationProp, type));
static_assert(offsetof(PageProperties, location) == offsetof(hipMemAllocationProp, location));
static_assert(offsetof(PageProperties, win32_handle_metadata) == offsetof(hipMemAllocationProp, win32HandleMetaData));
static_assert(offsetof(PageProperties, flags) == offsetof(hipMemAllocationProp, allocFlags));
#endif

constexpr int kVersionOfPages = 60'000'000;        // drivers since this version read PageProperties
constexpr int kVersionOfMemoryTypes = 60'000'000;  // since this version the numbers of hipMemoryType are those of CUDA

constexpr auto kGranularity = hipMemAllocationGranularityMinimum;
constexpr auto kMapsPages =
    static_cast<hipDeviceAttribute_t>(89);  // hipDeviceAttributeVirtualMemoryManagementSupported
#if HIP_VERSION_MAJOR >= 6
static_assert(kMapsPages == hipDeviceAttributeVirtualMemoryManagementSupported);
#endif
constexpr unsigned kRegisterPortable = hipHostRegisterPortable;
constexpr unsigned kOwnStream = hipStreamNonBlocking;
constexpr unsigned kEventTiming = hipEventDefault;
constexpr unsigned kEventPlain = hipEventDisableTiming;

// Lists every required entry point once: member, function.
#define SH_GPU_ENTRY_POINTS(X)                   \
    X(error_name, hipGetErrorName)               \
    X(error_text, hipGetErrorString)             \
    X(last_error, hipGetLastError)               \
    X(runtime_version, hipRuntimeGetVersion)     \
    X(device_count, hipGetDeviceCount)           \
    X(device_get, hipDeviceGet)                  \
    X(device_name, hipDeviceGetName)             \
    X(device_attribute, hipDeviceGetAttribute)   \
    X(device_current, hipGetDevice)              \
    X(device_set, hipSetDevice)                  \
    X(memory_info, hipMemGetInfo)                \
    X(allocate, hipMalloc)                       \
    X(deallocate, hipFree)                       \
    X(host_register, hipHostRegister)            \
    X(host_unregister, hipHostUnregister)        \
    X(pointer_attribute, hipPointerGetAttribute) \
    X(stream_create, hipStreamCreateWithFlags)   \
    X(stream_destroy, hipStreamDestroy)          \
    X(stream_synchronize, hipStreamSynchronize)  \
    X(device_synchronize, hipDeviceSynchronize)  \
    X(stream_wait_event, hipStreamWaitEvent)     \
    X(stream_is_capturing, hipStreamIsCapturing) \
    X(stream_add_callback, hipStreamAddCallback) \
    X(event_create, hipEventCreateWithFlags)     \
    X(event_destroy, hipEventDestroy)            \
    X(event_record, hipEventRecord)              \
    X(event_query, hipEventQuery)                \
    X(event_synchronize, hipEventSynchronize)    \
    X(event_elapsed, hipEventElapsedTime)        \
    X(copy_to_device, hipMemcpyHtoDAsync)        \
    X(copy_to_host, hipMemcpyDtoHAsync)          \
    X(copy_on_device, hipMemcpyDtoDAsync)        \
    X(fill, hipMemsetD8Async)

// Entry points that a driver may lack: their pointers are null then. Their types are declared here, because headers may
// lack them too.
using ExchangeCaptureMode = Result(CaptureMode*);
using LaunchHost = Result(Stream, void (*)(void*), void*);
using PageGranularity = Result(size_t*, const PageProperties*, hipMemAllocationGranularity_flags);
using PageCreate = Result(Page*, size_t, const PageProperties*, unsigned long long);
using PageRelease = Result(Page);
using RangeReserve = Result(Address*, size_t, size_t, Address, unsigned long long);
using RangeFree = Result(Address, size_t);
using PageMap = Result(Address, size_t, size_t, Page, unsigned long long);
using RangeUnmap = Result(Address, size_t);
using SetAccess = Result(Address, size_t, const hipMemAccessDesc*, size_t);
using BusId = Result(char*, int, DeviceIndex);
#define SH_GPU_OPTIONAL_ENTRY_POINTS(X)                                               \
    X(exchange_capture_mode, hipThreadExchangeStreamCaptureMode, ExchangeCaptureMode) \
    X(launch_host, hipLaunchHostFunc, LaunchHost)                                     \
    X(page_granularity, hipMemGetAllocationGranularity, PageGranularity)              \
    X(page_create, hipMemCreate, PageCreate)                                          \
    X(page_release, hipMemRelease, PageRelease)                                       \
    X(range_reserve, hipMemAddressReserve, RangeReserve)                              \
    X(range_free, hipMemAddressFree, RangeFree)                                       \
    X(page_map, hipMemMap, PageMap)                                                   \
    X(range_unmap, hipMemUnmap, RangeUnmap)                                           \
    X(set_access, hipMemSetAccess, SetAccess)                                         \
    X(bus_id, hipDeviceGetPCIBusId, BusId)

inline PageProperties page_properties(DeviceIndex device) {
    PageProperties properties = {};
    properties.type = hipMemAllocationTypePinned;
    properties.location.type = hipMemLocationTypeDevice;
    properties.location.id = device;
    return properties;
}

inline hipMemAccessDesc read_and_write(DeviceIndex device) {
    hipMemAccessDesc access = {};
    access.location.type = hipMemLocationTypeDevice;
    access.location.id = device;
    access.flags = hipMemAccessFlagsProtReadWrite;
    return access;
}

// The driver initialises itself at the first call.
template <class Driver>
Result start(const Driver&) {
    return kSuccess;
}

template <class Driver>
const char* error_name(const Driver& driver, Result result) {
    return driver.error_name(result);
}

template <class Driver>
const char* error_text(const Driver& driver, Result result) {
    return driver.error_text(result);
}

// A failure stays stored for the thread's next hipGetLastError(), which belongs to the engine. So the library clears
// it.
template <class Driver>
void forget_error(const Driver& driver) {
    (void)driver.last_error();
}

template <class Driver>
Result open_context(const Driver&, DeviceIndex device, Context* out) {
    *out = device;
    return kSuccess;
}

template <class Driver>
void close_context(const Driver&, DeviceIndex) {}

// Makes the device current on the calling thread. `entered` is true if it was not current before: leave() has to follow
// then.
template <class Driver>
Result enter(const Driver& driver, Context wanted, Context* before, bool* entered) {
    Result result = driver.device_current(before);
    if (result != kSuccess || *before == wanted) return result;
    result = driver.device_set(wanted);
    *entered = result == kSuccess;
    return result;
}

template <class Driver>
void leave(const Driver& driver, Context before) {
    (void)driver.device_set(before);
}

template <class Driver>
int version(const Driver& driver) {
    int version = 0;
    return driver.runtime_version(&version) == kSuccess ? version : 0;
}

// Returns true if the device maps memory by pages and the driver has all entry points for it. Drivers that do not know
// the attribute do not map pages.
template <class Driver>
bool maps_pages(const Driver& driver, DeviceIndex device) {
    const bool complete = driver.page_granularity && driver.page_create && driver.page_release &&
                          driver.range_reserve && driver.range_free && driver.page_map && driver.range_unmap &&
                          driver.set_access;
    if (!complete || version(driver) < kVersionOfPages) return false;
    int maps = 0;
    const Result result = driver.device_attribute(&maps, kMapsPages, device);
    if (result != kSuccess) forget_error(driver);
    return result == kSuccess && maps;
}

// Not asked: HIP's headers of the oldest version that the plugin is built with do not name the attribute.
template <class Driver>
uint32_t host_node(const Driver&, DeviceIndex) {
    return 0;
}

// The hipMemoryType of host memory that the driver knows.
constexpr unsigned host_memory_type(int version) { return version >= kVersionOfMemoryTypes ? 1 : 0; }

// Finds the range of host memory, known to the driver, that contains the address.
template <class Driver>
bool host_range(const Driver& driver, const void* memory, uint64_t* out_start, uint64_t* out_bytes) {
    const auto address = const_cast<Address>(memory);
    unsigned type = 0;
    void* start = nullptr;
    size_t bytes = 0;
    const bool known = driver.pointer_attribute(&type, HIP_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == kSuccess &&
                       type == host_memory_type(version(driver)) &&
                       driver.pointer_attribute(&start, HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR, address) == kSuccess &&
                       driver.pointer_attribute(&bytes, HIP_POINTER_ATTRIBUTE_RANGE_SIZE, address) == kSuccess;
    if (!known) forget_error(driver);
    *out_start = reinterpret_cast<uintptr_t>(start);
    *out_bytes = bytes;
    return known;
}

// The backend does not copy from the memory of other devices, because this was never tried with HIP.
template <class Driver>
bool device_range(const Driver&, Address, uint64_t*, uint64_t*, int*) {
    return false;
}
template <class Driver>
bool reach_peer(const Driver&, DeviceIndex, DeviceIndex, Address, uint64_t, uint64_t) {
    return false;
}
template <class Driver>
Result copy_on_device(const Driver& driver, Address to, Address from, size_t bytes, Stream stream) {
    return driver.copy_on_device(to, from, bytes, stream);
}
constexpr bool kReachesPeers = false;
constexpr bool kHashesContents = false;
constexpr bool kUnpacks = false;
constexpr bool kPacksTiles = false;

struct HostCall {
    void (*fn)(void*);
    void* data;
};

inline void run_host_call(Stream, Result, void* data) {
    const std::unique_ptr<HostCall> call(static_cast<HostCall*>(data));
    call->fn(call->data);
}

// Calls fn(data) in the stream. Drivers before 5.3 have only the older function.
template <class Driver>
Result launch_host(const Driver& driver, Stream stream, void (*fn)(void*), void* data) {
    if (driver.launch_host) return driver.launch_host(stream, fn, data);
    auto call = std::make_unique<HostCall>(HostCall{fn, data});
    const Result result = driver.stream_add_callback(stream, run_host_call, call.get(), 0);
    if (result == kSuccess) (void)call.release();  // run_host_call() frees it
    return result;
}

}  // namespace SH_GPU_NAMESPACE::api
