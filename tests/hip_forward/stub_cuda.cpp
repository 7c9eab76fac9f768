// libcuda.so.1 for tests on machines without a GPU: the entry points of CUDA that the plugins and the tests use, on the
// library's host backend. This file has devices, contexts and memory.
#include "stub_cuda.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <tuple>
#include <utility>

#include "plugins/backends.h"

namespace stagehand::stub {
namespace {

constexpr char kOptions[] = "granularity=64KiB;capacity=1GiB";

thread_local std::vector<CUcontext> stack;
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUcontext the_context() { return reinterpret_cast<CUcontext>(&stub()); }

// A context of another GPU, in which calls also succeed.
CUcontext context_elsewhere() { return reinterpret_cast<CUcontext>(&stub().recorder); }

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
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the memory is registered"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "the memory is not registered"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "the capture was invalidated"},
    {CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
     "the capture has a stream that was not joined"},
    {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "a dependency on work outside the capture"},
    {CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT", "the event was last recorded in a capture"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const Name* find(CUresult result) {
    for (const Name& name : kNames)
        if (name.result == result) return &name;
    return nullptr;
}

// Returns the begin and the end of the entry that holds an address. `sizes` maps begins to sizes. Returns zeros if no
// entry holds the address.
std::pair<uint64_t, uint64_t> entry_of(const std::map<uint64_t, uint64_t>& sizes, uint64_t address) {
    const auto next = sizes.upper_bound(address);
    if (next == sizes.begin()) return {};
    const auto& [begin, bytes] = *std::prev(next);
    return address < begin + bytes ? std::pair(begin, begin + bytes) : std::pair<uint64_t, uint64_t>();
}

bool is_device_page(const CUmemAllocationProp* properties) {
    return properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
           properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE && properties->location.id == 0;
}

}  // namespace

Stub& stub() {
    static Stub* const one = new Stub;  // threads may use it until the process has ended
    return *one;
}

CUresult result_of(sh_status status) {
    if (status >= 0) return CUDA_SUCCESS;
    if (status == SH_ERROR_OUT_OF_DEVICE_MEMORY) return CUDA_ERROR_OUT_OF_MEMORY;
    if (status == SH_ERROR_INVALID_ARGUMENT) return CUDA_ERROR_INVALID_VALUE;
    if (status == SH_ERROR_INVALID_HANDLE) return CUDA_ERROR_INVALID_HANDLE;
    return CUDA_ERROR_UNKNOWN;
}

CUresult result_of(test::Answer refusal) {
    switch (refusal) {
        case test::Answer::pass:
        case test::Answer::noted:
            return CUDA_SUCCESS;
        case test::Answer::isolation:
            return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        case test::Answer::unjoined:
            return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        case test::Answer::merge:
            return CUDA_ERROR_STREAM_CAPTURE_MERGE;
        case test::Answer::captured:
            return CUDA_ERROR_CAPTURED_EVENT;
        case test::Answer::unsafe:
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        case test::Answer::invalidated:
            return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        case test::Answer::unmatched:
            return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    return CUDA_ERROR_UNKNOWN;
}

test::CaptureMode mode_of(CUstreamCaptureMode mode) {
    return mode == CU_STREAM_CAPTURE_MODE_GLOBAL         ? test::CaptureMode::global
           : mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ? test::CaptureMode::thread_local_
                                                         : test::CaptureMode::relaxed;
}

CUresult entered() {
    if (!stub().initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (stack.empty() || !stack.back() || !stub().retained) return CUDA_ERROR_INVALID_CONTEXT;
    if (stack.back() == context_elsewhere()) stub().calls_elsewhere++;
    return CUDA_SUCCESS;
}

CUresult entered_unsafe() {
    const CUresult result = entered();
    return result == CUDA_SUCCESS ? result_of(stub().recorder.unsafe(mode_of(capture_mode))) : result;
}

}  // namespace stagehand::stub

using namespace stagehand::stub;

// Three functions for the test of contexts: the thread works on another GPU, this GPU's context is unavailable, and the
// number of calls that reached the other GPU.
STUB_EXPORT void sh_stub_work_elsewhere(int elsewhere) {
    if (elsewhere)
        stack.push_back(context_elsewhere());
    else
        stack.pop_back();
}
STUB_EXPORT void sh_stub_refuse_contexts(int refuse) { stub().refuses_contexts = refuse; }
STUB_EXPORT int sh_stub_calls_elsewhere() { return stub().calls_elsewhere; }

STUB_EXPORT CUresult cuInit(unsigned flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(stub().mutex);
    if (stub().initialised) return CUDA_SUCCESS;
    if (!stagehand::plugins::find_backend("host", nullptr, &stub().host, nullptr).ok()) return CUDA_ERROR_NO_DEVICE;
    const char* const options = std::getenv("STAGEHAND_TEST_STUB_OPTIONS");
    const sh_status status = stub().host->device_open(0, options ? options : kOptions, &stub().device, &stub().info);
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
    constexpr int kHostNode = 134;  // CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID
    if (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
        *value = 1;
    else if (static_cast<int>(attribute) == kHostNode)
        *value = 0;
    else
        return CUDA_ERROR_INVALID_VALUE;
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
    if (context != the_context() || stub().refuses_contexts) return CUDA_ERROR_INVALID_CONTEXT;
    stack.push_back(context);
    return CUDA_SUCCESS;
}

STUB_EXPORT CUresult cuCtxPopCurrent(CUcontext* context) {
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack.back();
    stack.pop_back();
    return CUDA_SUCCESS;
}

STUB_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    if (context && context != the_context()) return CUDA_ERROR_INVALID_CONTEXT;
    if (!stack.empty()) stack.pop_back();
    if (context) stack.push_back(context);
    return CUDA_SUCCESS;
}

STUB_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    std::swap(*mode, capture_mode);
    return CUDA_SUCCESS;
}

STUB_EXPORT CUresult cuMemGetInfo(size_t* free, size_t* total) {
    uint64_t there = 0, all = 0;
    const CUresult result = in_context(
        [&](const sh_backend& host, sh_backend_device* device) { return host.memory_info(device, &there, &all); });
    *free = there;
    *total = all;
    return result;
}

STUB_EXPORT CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                                   CUmemAllocationGranularity_flags) {
    *granularity = stub().info.granularity_bytes;
    return is_device_page(properties) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

STUB_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* page, size_t bytes,
                                 const CUmemAllocationProp* properties, unsigned long long flags) {
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

STUB_EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr wish,
                                         unsigned long long flags) {
    if (wish || flags) return CUDA_ERROR_INVALID_VALUE;
    return in_context([&](const sh_backend& host, sh_backend_device* device) {
        uint64_t at = 0;
        const sh_status status = host.range_reserve(device, bytes, alignment, &at);
        std::lock_guard lock(stub().mutex);
        if (status >= 0) stub().ranges[at] = bytes;
        *address = at;
        return status;
    });
}

STUB_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    return in_context([&](const sh_backend& host, sh_backend_device* device) {
        std::lock_guard lock(stub().mutex);
        const sh_status status = host.range_free(device, address, bytes);
        if (status >= 0) stub().ranges.erase(address);
        return status;
    });
}

STUB_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle page,
                              unsigned long long flags) {
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
    if (count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
        access->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
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

// The range must consist of whole mappings, as in the driver.
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
            if (const sh_status status = host.pages_unmap(device, mapping->first, mapping->second, 1); status < 0)
                return status;
            stub().accessible.erase(mapping->first);
            mapping = stub().mappings.erase(mapping);
        }
        return SH_OK;
    });
}

STUB_EXPORT CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
    return in_context_unsafe([&](const sh_backend& host, sh_backend_device* device) {
        Allocation made;
        const uint64_t granularity = stub().info.granularity_bytes;
        made.bytes = (bytes + granularity - 1) / granularity * granularity;
        uint64_t at = 0;
        sh_status status = host.pages_create(device, made.bytes, 1, &made.page);
        if (status < 0) return status;
        status = host.range_reserve(device, made.bytes, granularity, &at);
        if (status >= 0) status = host.pages_map(device, at, made.bytes, 1, &made.page);
        std::lock_guard lock(stub().mutex);
        if (status >= 0) stub().allocations[at] = made;
        *address = at;
        return status;
    });
}

STUB_EXPORT CUresult cuMemFree(CUdeviceptr address) {
    return in_context_unsafe([&](const sh_backend& host, sh_backend_device* device) -> sh_status {
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
    const CUresult result = in_context_unsafe(
        [&](const sh_backend& host, sh_backend_device* device) { return host.host_register(device, memory, bytes); });
    if (result != CUDA_SUCCESS)
        return result == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : result;
    std::lock_guard lock(stub().mutex);
    stub().registered[reinterpret_cast<uintptr_t>(memory)] = bytes;
    return CUDA_SUCCESS;
}

STUB_EXPORT CUresult cuMemHostUnregister(void* memory) {
    const CUresult result = in_context_unsafe(
        [&](const sh_backend& host, sh_backend_device* device) { return host.host_unregister(device, memory); });
    if (result != CUDA_SUCCESS) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    std::lock_guard lock(stub().mutex);
    stub().registered.erase(reinterpret_cast<uintptr_t>(memory));
    return CUDA_SUCCESS;
}

// Allocates and registers the memory. The page before the memory holds its size.
STUB_EXPORT CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) {
    if (flags & ~unsigned(CU_MEMHOSTALLOC_PORTABLE) || !bytes) return CUDA_ERROR_INVALID_VALUE;
    constexpr size_t kPage = 4096;
    void* const made =
        mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (made == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    *static_cast<size_t*>(made) = bytes;
    *memory = static_cast<char*>(made) + kPage;
    const CUresult result = cuMemHostRegister(*memory, bytes, 0);
    if (result != CUDA_SUCCESS) munmap(made, bytes + kPage);
    return result;
}

STUB_EXPORT CUresult cuMemFreeHost(void* memory) {
    if (const CUresult result = cuMemHostUnregister(memory); result != CUDA_SUCCESS) return result;
    constexpr size_t kPage = 4096;
    void* const made = static_cast<char*>(memory) - kPage;
    munmap(made, *static_cast<size_t*>(made) + kPage);
    return CUDA_SUCCESS;
}

// Unknown memory has no attributes, which is no error. Registrations that touch count as one range, as in NVIDIA's
// driver. Mapped pages have the range of addresses in which they lie.
STUB_EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** values,
                                            CUdeviceptr pointer) {
    if (const CUresult result = entered(); result != CUDA_SUCCESS) return result;
    std::lock_guard lock(stub().mutex);
    unsigned type = 0;
    CUdeviceptr start = 0, end = 0;
    const auto& registered = stub().registered;
    auto next = registered.upper_bound(pointer);
    if (next != registered.begin() && pointer < std::prev(next)->first + std::prev(next)->second) {
        auto first = std::prev(next);
        type = CU_MEMORYTYPE_HOST;
        end = first->first + first->second;
        while (first != registered.begin() && std::prev(first)->first + std::prev(first)->second == first->first)
            --first;
        start = first->first;
        for (; next != registered.end() && next->first == end; ++next) end += next->second;
    } else if (entry_of(stub().mappings, pointer).second) {
        type = CU_MEMORYTYPE_DEVICE;
        std::tie(start, end) = entry_of(stub().ranges, pointer);
    } else if (const auto allocation = stub().allocations.upper_bound(pointer);
               allocation != stub().allocations.begin()) {
        const auto& [at, made] = *std::prev(allocation);
        if (pointer < at + made.bytes) type = CU_MEMORYTYPE_DEVICE, start = at, end = at + made.bytes;
    }
    for (unsigned i = 0; i < count; i++) {
        switch (attributes[i]) {
            case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
                *static_cast<unsigned*>(values[i]) = type;
                break;
            case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
                *static_cast<int*>(values[i]) = type ? 0 : -2;
                break;
            case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
                *static_cast<CUdeviceptr*>(values[i]) = start;
                break;
            case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
                *static_cast<size_t*>(values[i]) = end - start;
                break;
            default:
                return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}
