// The stub of CUDA's driver: how programs ask it for its functions.
#include <cstring>

#include "stub_cuda.h"

#undef cuGetProcAddress
STUB_EXPORT CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags);
STUB_EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                                         CUdriverProcAddressQueryResult* status);

namespace stagehand::stub {
namespace {

// The functions of which the stub gives more than one version, or which tests ask for.
void* function_of(const char* symbol, int version) {
    if (!std::strcmp(symbol, "cuGetProcAddress"))
        return version >= 12000 ? reinterpret_cast<void*>(cuGetProcAddress_v2)
                                : reinterpret_cast<void*>(::cuGetProcAddress);
    const struct {
        const char* name;
        void* function;
    } all[] = {
        {"cuMemAlloc", reinterpret_cast<void*>(cuMemAlloc)},
        {"cuMemFree", reinterpret_cast<void*>(cuMemFree)},
        {"cuMemGetInfo", reinterpret_cast<void*>(cuMemGetInfo)},
    };
    for (const auto& one : all)
        if (!std::strcmp(one.name, symbol)) return one.function;
    return nullptr;
}

}  // namespace
}  // namespace stagehand::stub

STUB_EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t,
                                         CUdriverProcAddressQueryResult* status) {
    *function = stagehand::stub::function_of(symbol, version);
    if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

STUB_EXPORT CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}

STUB_EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
    CUcontext current = nullptr;
    if (cuCtxGetCurrent(&current) != CUDA_SUCCESS || !current) return CUDA_ERROR_INVALID_CONTEXT;
    *device = 0;
    return CUDA_SUCCESS;
}
