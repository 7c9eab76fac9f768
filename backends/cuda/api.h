// The CUDA names of the driver interface that backends/gpu uses. Types and constants come from the toolkit, so the
// compiler checks them. Entry points are looked up at run time, so nothing is linked.
#pragma once

#include <cuda.h>
#include <stagehand/device.h>

#include <cstddef>
#include <cstdint>
#include <iterator>

// Names the namespace of backends/gpu, so that one library can hold both backends.
#define SH_GPU_NAMESPACE stagehand::gpu::inline cuda

namespace SH_GPU_NAMESPACE::api {

constexpr char kBackendName[] = "cuda";
constexpr const char* kDriverFiles[] = {"libcuda.so.1"};

using Result = CUresult;
using DeviceIndex = CUdevice;
using Context = CUcontext;
using Address = CUdeviceptr;
using Stream = CUstream;
using Event = CUevent;
using Page = CUmemGenericAllocationHandle;
using CaptureMode = CUstreamCaptureMode;

constexpr Result kSuccess = CUDA_SUCCESS;
constexpr Result kNotReady = CUDA_ERROR_NOT_READY;
constexpr Result kOutOfMemory = CUDA_ERROR_OUT_OF_MEMORY;
constexpr Result kNotSupported = CUDA_ERROR_NOT_SUPPORTED;
constexpr Result kInvalidHandle = CUDA_ERROR_INVALID_HANDLE;
constexpr uint32_t kDeviceKind = SH_DEVICE_KIND_CUDA;
// A different stream on each thread.
constexpr uint32_t kThreadStream = 2;  // CU_STREAM_PER_THREAD
using CaptureStatus = CUstreamCaptureStatus;
constexpr CaptureStatus kNotCapturing = CU_STREAM_CAPTURE_STATUS_NONE;
constexpr CaptureMode kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

// The context cannot be used any more after these errors.
inline bool is_lost(Result result) {
    return result == CUDA_ERROR_ILLEGAL_ADDRESS || result == CUDA_ERROR_LAUNCH_FAILED ||
           result == CUDA_ERROR_ECC_UNCORRECTABLE || result == CUDA_ERROR_HARDWARE_STACK_ERROR ||
           result == CUDA_ERROR_ILLEGAL_INSTRUCTION || result == CUDA_ERROR_MISALIGNED_ADDRESS ||
           result == CUDA_ERROR_INVALID_ADDRESS_SPACE || result == CUDA_ERROR_INVALID_PC ||
           result == CUDA_ERROR_ASSERT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED ||
           result == CUDA_ERROR_LAUNCH_TIMEOUT || result == CUDA_ERROR_NVLINK_UNCORRECTABLE ||
           // The headers of some versions lack these: CONTAINED, TENSOR_MEMORY_LEAK, EXTERNAL_DEVICE.
           result == static_cast<Result>(226) || result == static_cast<Result>(721) ||
           result == static_cast<Result>(911);
}

// Lists every required entry point once: member, function. The macros of the toolkit turn a function into the version
// that the headers describe. The symbol with that name is looked up.
#define SH_GPU_ENTRY_POINTS(X)                                  \
    X(init, cuInit)                                             \
    X(error_name, cuGetErrorName)                               \
    X(error_text, cuGetErrorString)                             \
    X(device_count, cuDeviceGetCount)                           \
    X(device_get, cuDeviceGet)                                  \
    X(device_name, cuDeviceGetName)                             \
    X(device_attribute, cuDeviceGetAttribute)                   \
    X(context_retain, cuDevicePrimaryCtxRetain)                 \
    X(context_release, cuDevicePrimaryCtxRelease)               \
    X(context_current, cuCtxGetCurrent)                         \
    X(context_push, cuCtxPushCurrent)                           \
    X(context_pop, cuCtxPopCurrent)                             \
    X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode) \
    X(memory_info, cuMemGetInfo)                                \
    X(allocate, cuMemAlloc)                                     \
    X(deallocate, cuMemFree)                                    \
    X(page_granularity, cuMemGetAllocationGranularity)          \
    X(page_create, cuMemCreate)                                 \
    X(page_release, cuMemRelease)                               \
    X(range_reserve, cuMemAddressReserve)                       \
    X(range_free, cuMemAddressFree)                             \
    X(page_map, cuMemMap)                                       \
    X(range_unmap, cuMemUnmap)                                  \
    X(set_access, cuMemSetAccess)                               \
    X(host_register, cuMemHostRegister)                         \
    X(host_unregister, cuMemHostUnregister)                     \
    X(pointer_attributes, cuPointerGetAttributes)               \
    X(stream_create, cuStreamCreate)                            \
    X(stream_destroy, cuStreamDestroy)                          \
    X(stream_synchronize, cuStreamSynchronize)                  \
    X(device_synchronize, cuCtxSynchronize)                     \
    X(stream_wait_event, cuStreamWaitEvent)                     \
    X(stream_is_capturing, cuStreamIsCapturing)                 \
    X(launch_host, cuLaunchHostFunc)                            \
    X(event_create, cuEventCreate)                              \
    X(event_destroy, cuEventDestroy)                            \
    X(event_record, cuEventRecord)                              \
    X(event_query, cuEventQuery)                                \
    X(event_synchronize, cuEventSynchronize)                    \
    X(event_elapsed, cuEventElapsedTime)                        \
    X(copy_to_device, cuMemcpyHtoDAsync)                        \
    X(copy_to_host, cuMemcpyDtoHAsync)                          \
    X(copy_on_device, cuMemcpyDtoDAsync)                        \
    X(fill, cuMemsetD8Async)                                    \
    X(module_load, cuModuleLoadData)                            \
    X(module_function, cuModuleGetFunction)                     \
    X(module_unload, cuModuleUnload)                            \
    X(launch_kernel, cuLaunchKernel)

// Entry points that a stand-in for the driver may lack, with their types.
using CanAccessPeer = decltype(cuDeviceCanAccessPeer);
using EnablePeerAccess = decltype(cuCtxEnablePeerAccess);
using CopyBetween = decltype(cuMemcpyAsync);
using BusId = decltype(cuDeviceGetPCIBusId);
#define SH_GPU_OPTIONAL_ENTRY_POINTS(X)                            \
    X(can_access_peer, cuDeviceCanAccessPeer, CanAccessPeer)       \
    X(enable_peer_access, cuCtxEnablePeerAccess, EnablePeerAccess) \
    X(copy_between, cuMemcpyAsync, CopyBetween)                    \
    X(bus_id, cuDeviceGetPCIBusId, BusId)

inline CUmemAllocationProp page_properties(DeviceIndex device) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    return properties;
}

inline CUmemAccessDesc read_and_write(DeviceIndex device) {
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return access;
}

constexpr auto kGranularity = CU_MEM_ALLOC_GRANULARITY_MINIMUM;
constexpr auto kMapsPages = CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
constexpr int kHostNode = 134;  // CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, which headers before 12.2 lack
constexpr unsigned kRegisterPortable = CU_MEMHOSTREGISTER_PORTABLE;
constexpr unsigned kOwnStream = CU_STREAM_NON_BLOCKING;
constexpr unsigned kEventTiming = CU_EVENT_DEFAULT;
constexpr unsigned kEventPlain = CU_EVENT_DISABLE_TIMING;

template <class Driver>
Result start(const Driver& driver) {
    return driver.init(0);
}

template <class Driver>
const char* error_name(const Driver& driver, Result result) {
    const char* name = nullptr;
    driver.error_name(result, &name);
    return name;
}

template <class Driver>
const char* error_text(const Driver& driver, Result result) {
    const char* text = nullptr;
    driver.error_text(result, &text);
    return text;
}

// The driver keeps no failure for a later call to report.
template <class Driver>
void forget_error(const Driver&) {}

// The primary context, which the engine uses too. The library needs no context of its own.
template <class Driver>
Result open_context(const Driver& driver, DeviceIndex device, Context* out) {
    return driver.context_retain(out, device);
}

template <class Driver>
void close_context(const Driver& driver, DeviceIndex device) {
    driver.context_release(device);
}

// Makes the context current on the calling thread. `entered` is true if it was not current before: leave() has to
// follow then.
template <class Driver>
Result enter(const Driver& driver, Context wanted, Context* before, bool* entered) {
    driver.context_current(before);
    if (*before == wanted) return kSuccess;
    const Result result = driver.context_push(wanted);
    *entered = result == kSuccess;
    return result;
}

template <class Driver>
void leave(const Driver& driver, Context) {
    Context ours = nullptr;
    driver.context_pop(&ours);
}

// Returns true if the device maps memory by pages.
template <class Driver>
bool maps_pages(const Driver& driver, DeviceIndex device) {
    int maps = 0;
    return driver.device_attribute(&maps, kMapsPages, device) == kSuccess && maps;
}

// 1 + the NUMA node of the host that is closest to the device, 0 if the driver does not know it.
template <class Driver>
uint32_t host_node(const Driver& driver, DeviceIndex device) {
    int node = -1;
    const Result result = driver.device_attribute(&node, static_cast<CUdevice_attribute>(kHostNode), device);
    return result == kSuccess && node >= 0 ? static_cast<uint32_t>(node) + 1 : 0;
}

// The driver's knowledge of an address. Memory that the driver does not know has type 0. A query for one attribute
// would give the same answer as an error of the driver, and tools that watch the driver's calls would report that
// error.
struct Range {
    unsigned type = 0;
    int device = 0;
    Address start = 0;
    size_t bytes = 0;
};

template <class Driver>
Range range_of(const Driver& driver, Address address) {
    Range range;
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void* answers[] = {&range.type, &range.device, &range.start, &range.bytes};
    if (driver.pointer_attributes(std::size(asked), asked, answers, address) != kSuccess) return {};
    return range;
}

// Finds the range of host memory, known to the driver, that contains the address.
template <class Driver>
bool host_range(const Driver& driver, const void* memory, uint64_t* out_start, uint64_t* out_bytes) {
    const Range range = range_of(driver, static_cast<Address>(reinterpret_cast<uintptr_t>(memory)));
    *out_start = range.start;
    *out_bytes = range.bytes;
    return range.type == CU_MEMORYTYPE_HOST && range.bytes;
}

// Finds the range of device memory that contains the address, and the device of the memory.
template <class Driver>
bool device_range(const Driver& driver, Address address, uint64_t* out_start, uint64_t* out_bytes, int* out_device) {
    const Range range = range_of(driver, address);
    *out_start = range.start;
    *out_bytes = range.bytes;
    *out_device = range.device;
    return range.type == CU_MEMORYTYPE_DEVICE && range.bytes;
}

// Lets the device of the current context copy from and to a peer's memory at this address. Returns 2 if the two devices
// can reach each other, 1 if the copy goes through the host, and 0 if the device cannot copy at all.
template <class Driver>
uint32_t reach_peer(const Driver& driver, DeviceIndex self, DeviceIndex peer, Address address, uint64_t start,
                    uint64_t bytes) {
    if (!driver.copy_between || !driver.can_access_peer || !driver.enable_peer_access) return 0;
    int straight = 0;
    if (driver.can_access_peer(&straight, self, peer) != kSuccess) return 0;
    if (!straight) return 1;
    Context owner = nullptr;
    CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_CONTEXT;
    void* answer = &owner;
    if (driver.pointer_attributes(1, &asked, &answer, address) == kSuccess && owner) {
        const Result result = driver.enable_peer_access(owner, 0);
        return result == kSuccess || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? 2 : 0;
    }
    // For memory that is mapped by pages, each mapping lists the devices that may use it.
    const CUmemAccessDesc access = read_and_write(self);
    return driver.set_access(start, bytes, &access, 1) == kSuccess ? 2 : 0;
}

// For a peer's memory this uses the call that finds the devices of both addresses by itself.
template <class Driver>
Result copy_on_device(const Driver& driver, Address to, Address from, size_t bytes, Stream stream) {
    return driver.copy_between ? driver.copy_between(to, from, bytes, stream)
                               : driver.copy_on_device(to, from, bytes, stream);
}
constexpr bool kReachesPeers = true;
constexpr bool kHashesContents = true;
constexpr bool kUnpacks = true;
constexpr bool kPacksTiles = true;

// Calls fn(data) in the stream.
template <class Driver>
Result launch_host(const Driver& driver, Stream stream, void (*fn)(void*), void* data) {
    return driver.launch_host(stream, fn, data);
}

}  // namespace SH_GPU_NAMESPACE::api
