// Translates numbers of HIP to CUDA and back. `version` is the major version of HIP, for numbers in which versions
// differ.
#pragma once

#include <cuda.h>
#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__ 1
#endif
#include <hip/hip_runtime_api.h>

namespace hip_forward {

hipError_t hip_error(CUresult result);
CUresult cuda_result(hipError_t error);  // for texts; CUDA_ERROR_UNKNOWN where CUDA has no such error
const char* error_name(hipError_t error);

// Returns false if there is no such attribute, or none in this version.
bool cuda_attribute(int hip_attribute, int version, CUdevice_attribute* out);
bool cuda_pointer_attribute(hipPointer_attribute attribute, CUpointer_attribute* out);
bool cuda_register_flags(unsigned hip_flags, unsigned* out);
bool cuda_event_flags(unsigned hip_flags, unsigned* out);
bool cuda_stream_flags(unsigned hip_flags, unsigned* out);
bool cuda_capture_mode(hipStreamCaptureMode mode, CUstreamCaptureMode* out);
hipStreamCaptureMode hip_capture_mode(CUstreamCaptureMode mode);
hipStreamCaptureStatus hip_capture_status(CUstreamCaptureStatus status);

// Returns the hipMemoryType of a driver of that version. The numbers are those of CUDA from version 6 on.
unsigned hip_memory_type(unsigned cuda_type, int version);

}  // namespace hip_forward
