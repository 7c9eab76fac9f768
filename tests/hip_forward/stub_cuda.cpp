// libcuda.so.1 for tests on machines without a GPU: CUDA's entry points that the plugins use, over the library's host backend. One
// device, whose context has to be current on the calling thread for whatever a real driver wants one for.
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "loader/loader.h"

#define STUB_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr uint64_t kGranularity = 64 << 10;
constexpr char kOptions[] = "granularity=64KiB;capacity=1GiB";

struct Allocation {   // made by cuMemAlloc
    uint64_t bytes = 0;
    sh_backend_page page = 0;
};

struct Stub {
    const sh_backend* host = nullptr;
    sh_backend_device* device = nullptr;
    sh_backend_device_info info = {};
    bool initialised = false;
    int retained = 0;
    std::mutex mutex;
    std::map<sh_backend_page, uint64_t> pages;          // to their sizes
    std::map<uint64_t, uint64_t> mappings;              // addresses to sizes, of one page each
    std::map<uint64_t, bool> accessible;
    std::map<uint64_t, uint64_t> registered;            // host memory
    std::map<uint64_t, Allocation> allocations;
};

Stub& stub() {
    static Stub* const one = new Stub;   // threads may use it until the process has ended
    return *one;
}

thread_local std::vector<CUcontext> stack;
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUcontext the_context() { return reinterpret_cast<CUcontext>(&stub()); }

CUresult result_of(sh_status status) {
    if (status >= 0) return CUDA_SUCCESS;
    if (status == SH_ERROR_OUT_OF_DEVICE_MEMORY) return CUDA_ERROR_OUT_OF_MEMORY;
    if (status == SH_ERROR_INVALID_ARGUMENT || status == SH_ERROR_INVALID_HANDLE) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_ERROR_UNKNOWN;
}

// What every call needs that works in a context.
CUresult entered() {
    if (!stub().initialised) return CUDA_ERROR_NOT_INITIALIZED;
    return stack.empty() || !stack.back() || !stub().retained ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

template <class Call>
CUresult in_context(Call call) {
    if (const CUresult result = entered(); result != CUDA_SUCCESS) return result;
    return result_of(call(*stub().host, stub().device));
}

sh_stream host(CUstream stream) { return reinterpret_cast<sh_stream>(stream); }
sh_backend_event host(CUevent event) { return reinterpret_cast<sh_backend_event>(event); }

struct Name {
    CUresult result;
    const char *name, *text;
};
constexpr Name kNames[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the memory is registered"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "the memory is not registered"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const Name* find(CUresult result) {
    for (const Name& name : kNames)
        if (name.result == result) return &name;
    return nullptr;
}

bool is_device_page(const CUmemAllocationProp* properties) {
    return properties->type == CU_MEM_ALLOCATION_TYPE_PINNED && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE && properties->location.id == 0;
}

}  // namespace

STUB_EXPORT CUresult cuInit(unsigned flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(stub().mutex);
    if (stub().initialised) return CUDA_SUCCESS;
    if (!stagehand::loader::find_backend("host", nullptr, &stub().host, nullptr).ok()) return CUDA_ERROR_NO_DEVICE;
    const sh_status status = stub().host->device_open(0, kOptions, &stub().device, &stub().info);
    stub().initialised = status >= 0;
    return result_of(status);
}

STUB_EXPORT CUresult cuGetErrorName(CUresult result, const char** out) {
    const Name* const name = find(result);
    *out = name ? name->name : nullptr;
    return name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

STUB_EXPORT CUresult cuGetErrorString(CUresult result, const char** out) {
    const Name* const name = find(result);
    *out = name ? name->text : nullptr;
    return name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

STUB_EXPORT CUresult cuDeviceGetCount(int* count) {
    *count = 1;
    return stub().initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

STUB_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = 0;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

STUB_EXPORT CUresult cuDeviceGetName(char* name, int bytes, CUdevice) {
    std::snprintf(name, static_cast<size_t>(bytes), "a stub over host memory");
    return CUDA_SUCCESS;
}

STUB_EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
    *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    return CUDA_SUCCESS;
}

STUB_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
    std::lock_guard lock(stub().mutex);
    stub().retained++;
    *context = the_context();
    return CUDA_SUCCESS;
}

STUB_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice) {
    std::lock_guard lock(stub().mutex);
    stub().retained--;
    return CUDA_SUCCESS;
}

STUB_EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = stack.empty() ? nullptr : stack.back();
    return CUDA_SUCCESS;
}

STUB_EXPORT CUresult cuCtxPushCurrent(CUcontext context) {
    if (context != the_context()) return CUDA_ERROR_INVALID_CONTEXT;
    stack.push_back(context);
    return CUDA_SUCCESS;
}

STUB_EXPORT CUresult cuCtxPopCurrent(CUcontext* context) {
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack.back();
    stack.pop_back();
    return CUDA_SUCCESS;
}

STUB_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    std::swap(*mode, capture_mode);
    return CUDA_SUCCESS;
}

STUB_EXPORT CUresult cuMemGetInfo(size_t* free, size_t* total) {
    uint64_t there = 0, all = 0;
    const CUresult result = in_context([&](const sh_backend& host, sh_backend_device* device) { return host.memory_info(device, &there, &all); });
    *free = there;
    *total = all;
    return result;
}

STUB_EXPORT CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties, CUmemAllocationGranularity_flags) {
    *granularity = kGranularity;
    return is_device_page(properties) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

STUB_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* page, size_t bytes, const CUmemAllocationProp* properties, unsigned long long flags) {
    if (flags || !is_device_page(properties)) return CUDA_ERROR_INVALID_VALUE;
    return in_context([&](const sh_backend& host, sh_backend_device* device) {
        sh_backend_page made = 0;
        const sh_status status = host.pages_create(device, bytes, 1, &made);
        std::lock_guard lock(stub().mutex);
        if (status >= 0) stub().pages[made] = bytes;
        *page = made;
        return status;
    });
}

STUB_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle page) {
    return in_context([&](const sh_backend& host, sh_backend_device* device) -> sh_status {
        std::lock_guard lock(stub().mutex);
        const auto known = stub().pages.find(page);
        if (known == stub().pages.end()) return SH_ERROR_INVALID_HANDLE;
        const sh_backend_page handle = page;
        const sh_status status = host.pages_destroy(device, known->second, 1, &handle);
        if (status >= 0) stub().pages.erase(known);
        return status;
    });
}

STUB_EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr wish, unsigned long long flags) {
    if (wish || flags) return CUDA_ERROR_INVALID_VALUE;
    return in_context([&](const sh_backend& host, sh_backend_device* device) {
        uint64_t at = 0;
        const sh_status status = host.range_reserve(device, bytes, alignment, &at);
        *address = at;
        return status;
    });
}

STUB_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    return in_context([&](const sh_backend& host, sh_backend_device* device) { return host.range_free(device, address, bytes); });
}

STUB_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle page, unsigned long long flags) {
    if (offset || flags) return CUDA_ERROR_INVALID_VALUE;
    return in_context([&](const sh_backend& host, sh_backend_device* device) {
        const sh_backend_page handle = page;
        const sh_status status = host.pages_map(device, address, bytes, 1, &handle);
        std::lock_guard lock(stub().mutex);
        if (status >= 0) stub().mappings[address] = bytes;
        return status;
    });
}

STUB_EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
    if (count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE || access->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(stub().mutex);
    for (uint64_t at = address; at < address + bytes;) {
        const auto mapping = stub().mappings.find(at);
        if (mapping == stub().mappings.end()) return CUDA_ERROR_INVALID_VALUE;
        stub().accessible[at] = true;
        at += mapping->second;
    }
    return CUDA_SUCCESS;
}

// A range of whole mappings, as the driver wants it.
STUB_EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    return in_context([&](const sh_backend& host, sh_backend_device* device) -> sh_status {
        std::lock_guard lock(stub().mutex);
        uint64_t end = address;
        while (end < address + bytes) {
            const auto mapping = stub().mappings.find(end);
            if (mapping == stub().mappings.end()) return SH_ERROR_INVALID_ARGUMENT;
            end += mapping->second;
        }
        if (end != address + bytes) return SH_ERROR_INVALID_ARGUMENT;
        for (auto mapping = stub().mappings.find(address); mapping != stub().mappings.end() && mapping->first < end;) {
            if (const sh_status status = host.pages_unmap(device, mapping->first, mapping->second, 1); status < 0) return status;
            stub().accessible.erase(mapping->first);
            mapping = stub().mappings.erase(mapping);
        }
        return SH_OK;
    });
}

STUB_EXPORT CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
    return in_context([&](const sh_backend& host, sh_backend_device* device) {
        Allocation made;
        made.bytes = (bytes + kGranularity - 1) / kGranularity * kGranularity;
        uint64_t at = 0;
        sh_status status = host.pages_create(device, made.bytes, 1, &made.page);
        if (status < 0) return status;
        status = host.range_reserve(device, made.bytes, kGranularity, &at);
        if (status >= 0) status = host.pages_map(device, at, made.bytes, 1, &made.page);
        std::lock_guard lock(stub().mutex);
        if (status >= 0) stub().allocations[at] = made;
        *address = at;
        return status;
    });
}

STUB_EXPORT CUresult cuMemFree(CUdeviceptr address) {
    return in_context([&](const sh_backend& host, sh_backend_device* device) -> sh_status {
        std::lock_guard lock(stub().mutex);
        const auto known = stub().allocations.find(address);
        if (known == stub().allocations.end()) return SH_ERROR_INVALID_HANDLE;
        const Allocation made = known->second;
        stub().allocations.erase(known);
        if (const sh_status status = host.pages_unmap(device, address, made.bytes, 1); status < 0) return status;
        if (const sh_status status = host.pages_destroy(device, made.bytes, 1, &made.page); status < 0) return status;
        return host.range_free(device, address, made.bytes);
    });
}

STUB_EXPORT CUresult cuMemHostRegister(void* memory, size_t bytes, unsigned flags) {
    if (flags & ~unsigned(CU_MEMHOSTREGISTER_PORTABLE)) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = in_context([&](const sh_backend& host, sh_backend_device* device) { return host.host_register(device, memory, bytes); });
    if (result != CUDA_SUCCESS) return result == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : result;
    std::lock_guard lock(stub().mutex);
    stub().registered[reinterpret_cast<uintptr_t>(memory)] = bytes;
    return CUDA_SUCCESS;
}

STUB_EXPORT CUresult cuMemHostUnregister(void* memory) {
    const CUresult result = in_context([&](const sh_backend& host, sh_backend_device* device) { return host.host_unregister(device, memory); });
    if (result != CUDA_SUCCESS) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    std::lock_guard lock(stub().mutex);
    stub().registered.erase(reinterpret_cast<uintptr_t>(memory));
    return CUDA_SUCCESS;
}

// Host memory only. Registrations that touch tell one range, as NVIDIA's driver does.
STUB_EXPORT CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    if (const CUresult result = entered(); result != CUDA_SUCCESS) return result;
    std::lock_guard lock(stub().mutex);
    auto range = stub().registered.upper_bound(pointer);
    if (range == stub().registered.begin()) return CUDA_ERROR_INVALID_VALUE;
    --range;
    if (pointer >= range->first + range->second) return CUDA_ERROR_INVALID_VALUE;
    auto first = range;
    while (first != stub().registered.begin() && std::prev(first)->first + std::prev(first)->second == first->first) --first;
    uint64_t end = range->first + range->second;
    for (auto next = std::next(range); next != stub().registered.end() && next->first == end; ++next) end += next->second;
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *static_cast<unsigned*>(value) = CU_MEMORYTYPE_HOST; return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *static_cast<CUdeviceptr*>(value) = first->first; return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<size_t*>(value) = end - first->first; return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

STUB_EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    if (flags & ~unsigned(CU_STREAM_NON_BLOCKING)) return CUDA_ERROR_INVALID_VALUE;
    return in_context([&](const sh_backend& backend, sh_backend_device* device) {
        sh_stream made = 0;
        const sh_status status = backend.stream_create(device, &made);
        *stream = reinterpret_cast<CUstream>(made);
        return status;
    });
}

STUB_EXPORT CUresult cuStreamDestroy(CUstream stream) {
    return in_context([&](const sh_backend& backend, sh_backend_device* device) { return backend.stream_destroy(device, host(stream)); });
}

STUB_EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    return in_context([&](const sh_backend& backend, sh_backend_device* device) { return backend.stream_synchronize(device, host(stream)); });
}

STUB_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    return in_context([&](const sh_backend& backend, sh_backend_device* device) { return backend.stream_wait_event(device, host(stream), host(event)); });
}

// Nothing is ever captured.
STUB_EXPORT CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return entered();
}

STUB_EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void* data) {
    return in_context([&](const sh_backend& backend, sh_backend_device* device) { return backend.stream_launch(device, host(stream), fn, data, 0); });
}

STUB_EXPORT CUresult cuEventCreate(CUevent* event, unsigned flags) {
    if (flags & ~unsigned(CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC)) return CUDA_ERROR_INVALID_VALUE;
    return in_context([&](const sh_backend& backend, sh_backend_device* device) {
        sh_backend_event made = 0;
        const sh_status status = backend.event_create(device, !(flags & CU_EVENT_DISABLE_TIMING), &made);
        *event = reinterpret_cast<CUevent>(made);
        return status;
    });
}

STUB_EXPORT CUresult cuEventDestroy(CUevent event) {
    return in_context([&](const sh_backend& backend, sh_backend_device* device) { return backend.event_destroy(device, host(event)); });
}

STUB_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    return in_context([&](const sh_backend& backend, sh_backend_device* device) { return backend.event_record(device, host(event), host(stream)); });
}

STUB_EXPORT CUresult cuEventQuery(CUevent event) {
    uint32_t done = 0;
    const CUresult result =
        in_context([&](const sh_backend& backend, sh_backend_device* device) { return backend.event_query(device, host(event), &done); });
    return result == CUDA_SUCCESS && !done ? CUDA_ERROR_NOT_READY : result;
}

STUB_EXPORT CUresult cuEventSynchronize(CUevent event) {
    return in_context([&](const sh_backend& backend, sh_backend_device* device) { return backend.event_synchronize(device, host(event)); });
}

STUB_EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
    int64_t ns = 0;
    const CUresult result =
        in_context([&](const sh_backend& backend, sh_backend_device* device) { return backend.event_elapsed(device, host(begin), host(end), &ns); });
    *milliseconds = static_cast<float>(ns) / 1e6f;
    return result;
}

STUB_EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
    return in_context([&](const sh_backend& backend, sh_backend_device* device) { return backend.copy_to_device(device, host(stream), to, from, bytes); });
}

STUB_EXPORT CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return in_context([&](const sh_backend& backend, sh_backend_device* device) { return backend.copy_to_host(device, host(stream), to, from, bytes); });
}

STUB_EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return in_context([&](const sh_backend& backend, sh_backend_device* device) { return backend.copy_on_device(device, host(stream), to, from, bytes); });
}

STUB_EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
    return in_context([&](const sh_backend& backend, sh_backend_device* device) { return backend.fill(device, host(stream), to, value, bytes); });
}

// The one program that is known: it keeps a stream busy for so many nanoseconds.
STUB_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* program) {
    if (const CUresult result = entered(); result != CUDA_SUCCESS) return result;
    *module = reinterpret_cast<CUmodule>(&stub());
    return std::strstr(static_cast<const char*>(program), ".entry sh_busy(.param .u64 busy_ns)") ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

STUB_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    *function = reinterpret_cast<CUfunction>(module);
    return std::strcmp(name, "sh_busy") == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

STUB_EXPORT CUresult cuModuleUnload(CUmodule) { return entered(); }

STUB_EXPORT CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream stream,
                                    void** arguments, void**) {
    const auto busy_ns = static_cast<int64_t>(*static_cast<const uint64_t*>(arguments[0]));
    return in_context([&](const sh_backend& backend, sh_backend_device* device) {
        return backend.stream_launch(device, host(stream), nullptr, nullptr, busy_ns);
    });
}
