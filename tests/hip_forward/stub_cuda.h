// The common part of the stub of CUDA's driver: the device that stands for a GPU, and the context. The context must be
// current on the calling thread in every call for which a real driver requires that.
#pragma once

#include <cuda.h>

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include <stagehand/backend.h>

#include "../graphs/recorder.h"

#define STUB_EXPORT extern "C" __attribute__((visibility("default")))

namespace stagehand::stub {

struct Allocation {  // made by cuMemAlloc
    uint64_t bytes = 0;
    sh_backend_page page = 0;
};

struct Stub {
    const sh_backend* host = nullptr;
    sh_backend_device* device = nullptr;
    sh_backend_device_info info = {};
    bool initialised = false;
    int retained = 0;
    std::atomic<bool> refuses_contexts{false};
    std::atomic<int> calls_elsewhere{0};
    std::mutex mutex;
    std::map<sh_backend_page, uint64_t> pages;  // to their sizes
    std::map<uint64_t, uint64_t> ranges;        // of addresses, to their sizes
    std::map<uint64_t, uint64_t> mappings;      // addresses to sizes, of one page each
    std::map<uint64_t, bool> accessible;
    std::map<uint64_t, uint64_t> registered;  // host memory
    std::map<uint64_t, Allocation> allocations;
    test::Recorder recorder;
};

Stub& stub();

CUresult result_of(sh_status status);
CUresult result_of(test::Answer refusal);

// The check of every call that needs a context.
CUresult entered();
// The check for calls that a capture may forbid on this thread.
CUresult entered_unsafe();

template <class Call>
CUresult in_context(Call call) {
    if (const CUresult result = entered(); result != CUDA_SUCCESS) return result;
    return result_of(call(*stub().host, stub().device));
}
template <class Call>
CUresult in_context_unsafe(Call call) {
    if (const CUresult result = entered_unsafe(); result != CUDA_SUCCESS) return result;
    return result_of(call(*stub().host, stub().device));
}

sh_stream host(CUstream stream);
inline sh_backend_event host(CUevent event) { return reinterpret_cast<sh_backend_event>(event); }

// Converts a mode for the recorder.
test::CaptureMode mode_of(CUstreamCaptureMode mode);

}  // namespace stagehand::stub
