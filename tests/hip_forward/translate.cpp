#include "translate.h"

namespace hip_forward {
namespace {

struct Error {
    hipError_t hip;
    CUresult cuda;
    const char* name;
};

// Several CUDA errors may share one HIP error. The first line of a HIP error gives the CUDA error for the way back.
constexpr Error kErrors[] = {
    {hipSuccess, CUDA_SUCCESS, "hipSuccess"},
    {hipErrorInvalidValue, CUDA_ERROR_INVALID_VALUE, "hipErrorInvalidValue"},
    {hipErrorOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY, "hipErrorOutOfMemory"},
    {hipErrorNotInitialized, CUDA_ERROR_NOT_INITIALIZED, "hipErrorNotInitialized"},
    {hipErrorDeinitialized, CUDA_ERROR_DEINITIALIZED, "hipErrorDeinitialized"},
    {hipErrorNoDevice, CUDA_ERROR_NO_DEVICE, "hipErrorNoDevice"},
    {hipErrorInvalidDevice, CUDA_ERROR_INVALID_DEVICE, "hipErrorInvalidDevice"},
    {hipErrorInvalidContext, CUDA_ERROR_INVALID_CONTEXT, "hipErrorInvalidContext"},
    {hipErrorMapFailed, CUDA_ERROR_MAP_FAILED, "hipErrorMapFailed"},
    {hipErrorUnmapFailed, CUDA_ERROR_UNMAP_FAILED, "hipErrorUnmapFailed"},
    {hipErrorAlreadyMapped, CUDA_ERROR_ALREADY_MAPPED, "hipErrorAlreadyMapped"},
    {hipErrorNotMapped, CUDA_ERROR_NOT_MAPPED, "hipErrorNotMapped"},
    {hipErrorECCNotCorrectable, CUDA_ERROR_ECC_UNCORRECTABLE, "hipErrorECCNotCorrectable"},
    {hipErrorInvalidHandle, CUDA_ERROR_INVALID_HANDLE, "hipErrorInvalidHandle"},
    {hipErrorIllegalState, CUDA_ERROR_ILLEGAL_STATE, "hipErrorIllegalState"},
    {hipErrorNotFound, CUDA_ERROR_NOT_FOUND, "hipErrorNotFound"},
    {hipErrorNotReady, CUDA_ERROR_NOT_READY, "hipErrorNotReady"},
    {hipErrorIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS, "hipErrorIllegalAddress"},
    {hipErrorLaunchTimeOut, CUDA_ERROR_LAUNCH_TIMEOUT, "hipErrorLaunchTimeOut"},
    {hipErrorContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED, "hipErrorContextIsDestroyed"},
    {hipErrorAssert, CUDA_ERROR_ASSERT, "hipErrorAssert"},
    {hipErrorHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
     "hipErrorHostMemoryAlreadyRegistered"},
    {hipErrorHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "hipErrorHostMemoryNotRegistered"},
    {hipErrorLaunchFailure, CUDA_ERROR_LAUNCH_FAILED, "hipErrorLaunchFailure"},
    // HIP does not distinguish these faults of a kernel.
    {hipErrorLaunchFailure, CUDA_ERROR_HARDWARE_STACK_ERROR, "hipErrorLaunchFailure"},
    {hipErrorLaunchFailure, CUDA_ERROR_ILLEGAL_INSTRUCTION, "hipErrorLaunchFailure"},
    {hipErrorLaunchFailure, CUDA_ERROR_MISALIGNED_ADDRESS, "hipErrorLaunchFailure"},
    {hipErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED, "hipErrorNotSupported"},
    {hipErrorStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "hipErrorStreamCaptureUnsupported"},
    {hipErrorStreamCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "hipErrorStreamCaptureInvalidated"},
    {hipErrorStreamCaptureUnjoined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "hipErrorStreamCaptureUnjoined"},
    {hipErrorStreamCaptureIsolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "hipErrorStreamCaptureIsolation"},
    {hipErrorCapturedEvent, CUDA_ERROR_CAPTURED_EVENT, "hipErrorCapturedEvent"},
    {hipErrorUnknown, CUDA_ERROR_UNKNOWN, "hipErrorUnknown"},
};

constexpr int kVirtualMemory = 89;  // hipDeviceAttributeVirtualMemoryManagementSupported, which the headers of 5.2 lack

}  // namespace

hipError_t hip_error(CUresult result) {
    for (const Error& error : kErrors)
        if (error.cuda == result) return error.hip;
    return hipErrorUnknown;
}

CUresult cuda_result(hipError_t result) {
    for (const Error& error : kErrors)
        if (error.hip == result) return error.cuda;
    return CUDA_ERROR_UNKNOWN;
}

const char* error_name(hipError_t result) {
    for (const Error& error : kErrors)
        if (error.hip == result) return error.name;
    return "hipErrorUnknown";
}

bool cuda_attribute(int attribute, int version, CUdevice_attribute* out) {
    if (attribute != kVirtualMemory || version < 6) return false;
    *out = CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    return true;
}

bool cuda_pointer_attribute(hipPointer_attribute attribute, CUpointer_attribute* out) {
    switch (attribute) {
        case HIP_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *out = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
            return true;
        case HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            *out = CU_POINTER_ATTRIBUTE_RANGE_START_ADDR;
            return true;
        case HIP_POINTER_ATTRIBUTE_RANGE_SIZE:
            *out = CU_POINTER_ATTRIBUTE_RANGE_SIZE;
            return true;
        default:
            return false;
    }
}

bool cuda_register_flags(unsigned flags, unsigned* out) {
    *out = (flags & hipHostRegisterPortable ? CU_MEMHOSTREGISTER_PORTABLE : 0) |
           (flags & hipHostRegisterMapped ? CU_MEMHOSTREGISTER_DEVICEMAP : 0);
    return (flags & ~unsigned(hipHostRegisterPortable | hipHostRegisterMapped)) == 0;
}

bool cuda_event_flags(unsigned flags, unsigned* out) {
    *out = (flags & hipEventDisableTiming ? CU_EVENT_DISABLE_TIMING : 0) |
           (flags & hipEventBlockingSync ? CU_EVENT_BLOCKING_SYNC : 0);
    return (flags & ~unsigned(hipEventDisableTiming | hipEventBlockingSync)) == 0;
}

bool cuda_stream_flags(unsigned flags, unsigned* out) {
    *out = flags & hipStreamNonBlocking ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
    return (flags & ~unsigned(hipStreamNonBlocking)) == 0;
}

bool cuda_capture_mode(hipStreamCaptureMode mode, CUstreamCaptureMode* out) {
    switch (mode) {
        case hipStreamCaptureModeGlobal:
            *out = CU_STREAM_CAPTURE_MODE_GLOBAL;
            return true;
        case hipStreamCaptureModeThreadLocal:
            *out = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            return true;
        case hipStreamCaptureModeRelaxed:
            *out = CU_STREAM_CAPTURE_MODE_RELAXED;
            return true;
    }
    return false;
}

hipStreamCaptureMode hip_capture_mode(CUstreamCaptureMode mode) {
    return mode == CU_STREAM_CAPTURE_MODE_GLOBAL         ? hipStreamCaptureModeGlobal
           : mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ? hipStreamCaptureModeThreadLocal
                                                         : hipStreamCaptureModeRelaxed;
}

hipStreamCaptureStatus hip_capture_status(CUstreamCaptureStatus status) {
    return status == CU_STREAM_CAPTURE_STATUS_NONE     ? hipStreamCaptureStatusNone
           : status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? hipStreamCaptureStatusActive
                                                       : hipStreamCaptureStatusInvalidated;
}

unsigned hip_memory_type(unsigned type, int version) {
    const bool host = type == CU_MEMORYTYPE_HOST;
    if (version >= 6) return host ? 1 : 2;  // hipMemoryTypeHost, hipMemoryTypeDevice
    return host ? 0 : 1;
}

}  // namespace hip_forward
