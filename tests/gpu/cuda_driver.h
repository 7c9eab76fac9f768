// The calls of CUDA's driver that an engine with graphs makes, looked up at run time.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace stagehand::test {

#define SH_TEST_TEXT(name) #name
#define SH_TEST_SYMBOL(name) SH_TEST_TEXT(name)

struct Cuda {
#define SH_TEST_CALLS(X)                                        \
    X(begin_capture, cuStreamBeginCapture)                      \
    X(end_capture, cuStreamEndCapture)                          \
    X(instantiate, cuGraphInstantiate)                          \
    X(launch, cuGraphLaunch)                                    \
    X(destroy_instance, cuGraphExecDestroy)                     \
    X(destroy, cuGraphDestroy)                                  \
    X(allocate, cuMemAlloc)                                     \
    X(deallocate, cuMemFree)                                    \
    X(copy_on_device, cuMemcpyDtoDAsync)                        \
    X(copy_peer, cuMemcpyPeerAsync)                             \
    X(copy_to_device, cuMemcpyHtoDAsync)                        \
    X(copy_to_host, cuMemcpyDtoH)                               \
    X(memory_info, cuMemGetInfo)                                \
    X(fill, cuMemsetD8Async)                                    \
    X(host_register, cuMemHostRegister)                         \
    X(host_unregister, cuMemHostUnregister)                     \
    X(event_create, cuEventCreate)                              \
    X(event_destroy, cuEventDestroy)                            \
    X(event_record, cuEventRecord)                              \
    X(event_query, cuEventQuery)                                \
    X(event_elapsed, cuEventElapsedTime)                        \
    X(event_synchronize, cuEventSynchronize)                    \
    X(stream_create, cuStreamCreate)                            \
    X(stream_destroy, cuStreamDestroy)                          \
    X(wait_event, cuStreamWaitEvent)                            \
    X(synchronize, cuStreamSynchronize)                         \
    X(graph_nodes, cuGraphGetNodes)                             \
    X(node_type, cuGraphNodeGetType)                            \
    X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode) \
    X(module_load, cuModuleLoadData)                            \
    X(module_function, cuModuleGetFunction)                     \
    X(module_unload, cuModuleUnload)                            \
    X(launch_kernel, cuLaunchKernel)                            \
    X(retain, cuDevicePrimaryCtxRetain)                         \
    X(set_current, cuCtxSetCurrent)
#define SH_TEST_MEMBER(member, function) decltype(&::function) member = nullptr;
    SH_TEST_CALLS(SH_TEST_MEMBER)
#undef SH_TEST_MEMBER
    CUcontext context = nullptr;  // of the first device, as everybody in the process has it

    // Makes the first device's primary context current. Throws if there is no driver.
    Cuda() {
        void* const file = dlopen("libcuda.so.1", RTLD_NOW);
        if (!file) throw std::runtime_error(dlerror());
#define SH_TEST_LOOK_UP(member, function)                                               \
    member = reinterpret_cast<decltype(member)>(dlsym(file, SH_TEST_SYMBOL(function))); \
    if (!member) throw std::runtime_error(std::string("the driver has no ") + SH_TEST_SYMBOL(function));
        SH_TEST_CALLS(SH_TEST_LOOK_UP)
#undef SH_TEST_LOOK_UP
        auto* const init = reinterpret_cast<decltype(&::cuInit)>(dlsym(file, "cuInit"));
        if (!init || init(0) != CUDA_SUCCESS) throw std::runtime_error("the driver finds no device");
        if (retain(&context, 0) != CUDA_SUCCESS || set_current(context) != CUDA_SUCCESS)
            throw std::runtime_error("there is no context");
    }
};

}  // namespace stagehand::test
