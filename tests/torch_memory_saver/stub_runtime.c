/* A stand-in for CUDA's runtime over CUDA's driver, as far as the tests call it. Links the stub of the driver. */
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

extern int cuInit(unsigned flags);
extern int cuDevicePrimaryCtxRetain(void** context, int device);
extern int cuCtxGetCurrent(void** context);
extern int cuCtxSetCurrent(void* context);
extern int cuMemAlloc_v2(unsigned long long* address, size_t bytes);
extern int cuMemFree_v2(unsigned long long address);

/* The primary context is current on each thread that uses the runtime. */
static int enter(void) {
    void* context = NULL;
    if (cuInit(0) || cuCtxGetCurrent(&context)) return 3;
    if (context) return 0;
    return cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ? 3 : 0;
}

EXPORT int cudaGetDevice(int* device) {
    *device = 0;
    return enter();
}

EXPORT int cudaMalloc(void** memory, size_t bytes) {
    unsigned long long address = 0;
    int failed = enter();
    *memory = NULL;
    if (!failed && bytes) failed = cuMemAlloc_v2(&address, bytes);
    if (!failed) *memory = (void*)(size_t)address;
    return failed;
}

EXPORT int cudaFree(void* memory) {
    const int failed = enter();
    return failed || !memory ? failed : cuMemFree_v2((unsigned long long)(size_t)memory);
}
