// The translation of numbers between HIP and CUDA, and the plugin's behaviour with different versions of HIP.
#define __HIP_DISABLE_CPP_FUNCTIONS__ 1
#include "translate.h"

#include <gtest/gtest.h>

#include <vector>

#include "hip/api.h"

namespace {

namespace api = stagehand::gpu::api;

TEST(Translate, ErrorsComeBackAsThemselves) {
    for (const hipError_t error :
         {hipSuccess, hipErrorInvalidValue, hipErrorOutOfMemory, hipErrorNoDevice, hipErrorInvalidDevice,
          hipErrorInvalidContext, hipErrorECCNotCorrectable, hipErrorInvalidHandle, hipErrorNotReady,
          hipErrorIllegalAddress, hipErrorLaunchFailure, hipErrorHostMemoryAlreadyRegistered,
          hipErrorHostMemoryNotRegistered, hipErrorNotSupported, hipErrorStreamCaptureIsolation, hipErrorUnknown})
        EXPECT_EQ(hip_forward::hip_error(hip_forward::cuda_result(error)), error) << hip_forward::error_name(error);
}

TEST(Translate, EachErrorHasItsName) {
    EXPECT_STREQ(hip_forward::error_name(hipErrorOutOfMemory), "hipErrorOutOfMemory");
    EXPECT_STREQ(hip_forward::error_name(hipErrorHostMemoryAlreadyRegistered), "hipErrorHostMemoryAlreadyRegistered");
    EXPECT_STREQ(hip_forward::error_name(static_cast<hipError_t>(12345)), "hipErrorUnknown");
}

TEST(Translate, FaultsThatHipDoesNotTellApartLoseTheDevice) {
    for (const CUresult fault :
         {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_MISALIGNED_ADDRESS, CUDA_ERROR_ASSERT,
          CUDA_ERROR_ILLEGAL_INSTRUCTION, CUDA_ERROR_HARDWARE_STACK_ERROR, CUDA_ERROR_ECC_UNCORRECTABLE})
        EXPECT_TRUE(api::is_lost(hip_forward::hip_error(fault))) << fault;
    for (const CUresult other :
         {CUDA_SUCCESS, CUDA_ERROR_NOT_READY, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE})
        EXPECT_FALSE(api::is_lost(hip_forward::hip_error(other))) << other;
}

TEST(Translate, WhatIsNotKnownIsRefused) {
    CUdevice_attribute attribute;
    EXPECT_TRUE(hip_forward::cuda_attribute(api::kMapsPages, 6, &attribute));
    EXPECT_EQ(attribute, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    EXPECT_FALSE(hip_forward::cuda_attribute(api::kMapsPages, 5, &attribute));
    EXPECT_FALSE(hip_forward::cuda_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 6,
                                             &attribute));  // CUDA's number
    CUpointer_attribute pointer;
    EXPECT_FALSE(hip_forward::cuda_pointer_attribute(HIP_POINTER_ATTRIBUTE_CONTEXT, &pointer));
    unsigned flags = 0;
    EXPECT_FALSE(hip_forward::cuda_register_flags(0x80, &flags));
    EXPECT_FALSE(hip_forward::cuda_event_flags(hipEventReleaseToSystem, &flags));
    EXPECT_FALSE(hip_forward::cuda_stream_flags(2, &flags));
}

TEST(Translate, FlagsAndModes) {
    unsigned flags = 0;
    ASSERT_TRUE(hip_forward::cuda_register_flags(api::kRegisterPortable, &flags));
    EXPECT_EQ(flags, unsigned(CU_MEMHOSTREGISTER_PORTABLE));
    ASSERT_TRUE(hip_forward::cuda_event_flags(api::kEventPlain, &flags));
    EXPECT_EQ(flags, unsigned(CU_EVENT_DISABLE_TIMING));
    ASSERT_TRUE(hip_forward::cuda_stream_flags(api::kOwnStream, &flags));
    EXPECT_EQ(flags, unsigned(CU_STREAM_NON_BLOCKING));
    for (const auto mode : {hipStreamCaptureModeGlobal, hipStreamCaptureModeThreadLocal, hipStreamCaptureModeRelaxed}) {
        CUstreamCaptureMode known;
        ASSERT_TRUE(hip_forward::cuda_capture_mode(mode, &known));
        EXPECT_EQ(hip_forward::hip_capture_mode(known), mode);
    }
}

// ROCm 6 changed the numbers of hipMemoryType. 0 meant host memory before, and means unregistered memory since then.
TEST(Translate, MemoryTypesAreThoseOfTheDriversVersion) {
    EXPECT_EQ(api::host_memory_type(50'221'153), hip_forward::hip_memory_type(CU_MEMORYTYPE_HOST, 5));
    EXPECT_EQ(api::host_memory_type(60'032'830), hip_forward::hip_memory_type(CU_MEMORYTYPE_HOST, 6));
    EXPECT_NE(api::host_memory_type(50'221'153), hip_forward::hip_memory_type(CU_MEMORYTYPE_DEVICE, 5));
    EXPECT_NE(api::host_memory_type(60'032'830), hip_forward::hip_memory_type(CU_MEMORYTYPE_DEVICE, 6));
    EXPECT_NE(api::host_memory_type(60'032'830), 0u);
}

// A driver in the form of the plugin's table, with the entries that the tests need.
int version = 0, maps = 0, forgotten = 0;
hipError_t attribute_result = hipSuccess;
hipError_t get_version(int* out) {
    *out = version;
    return hipSuccess;
}
hipError_t get_attribute(int* out, hipDeviceAttribute_t, int) {
    *out = maps;
    return attribute_result;
}
hipError_t get_last_error() {
    forgotten++;
    return hipSuccess;
}
std::vector<void*> launched;
hipError_t launch(hipStream_t, void (*)(void*), void* data) {
    launched.push_back(data);
    return hipSuccess;
}
hipError_t callback_result = hipSuccess;
hipError_t add_callback(hipStream_t stream, hipStreamCallback_t fn, void* data, unsigned) {
    if (callback_result == hipSuccess) fn(stream, hipSuccess, data);
    return callback_result;
}

struct TestDriver {
    hipError_t (*runtime_version)(int*) = get_version;
    hipError_t (*device_attribute)(int*, hipDeviceAttribute_t, int) = get_attribute;
    hipError_t (*last_error)() = get_last_error;
    api::LaunchHost* launch_host = launch;
    hipError_t (*stream_add_callback)(hipStream_t, hipStreamCallback_t, void*, unsigned) = add_callback;
    // The test asks only whether these entries are there.
    void *page_granularity = this, *page_create = this, *page_release = this, *range_reserve = this, *range_free = this,
         *page_map = this, *range_unmap = this, *set_access = this;
};

TEST(HipApi, PagesAreMappedOnlyWithAllThatThisTakes) {
    TestDriver driver;
    version = 60'032'830, maps = 1, attribute_result = hipSuccess;
    EXPECT_TRUE(api::maps_pages(driver, 0));
    maps = 0;
    EXPECT_FALSE(api::maps_pages(driver, 0));
    maps = 1;
    for (void** const member :
         {&driver.page_granularity, &driver.page_create, &driver.page_release, &driver.range_reserve,
          &driver.range_free, &driver.page_map, &driver.range_unmap, &driver.set_access}) {
        void* const there = *member;
        *member = nullptr;
        EXPECT_FALSE(api::maps_pages(driver, 0));
        *member = there;
    }
    version = 50'221'153;  // it has them all, with other structures
    EXPECT_FALSE(api::maps_pages(driver, 0));
}

TEST(HipApi, ADriverThatDoesNotKnowTheAttributeLeavesNoErrorBehind) {
    TestDriver driver;
    version = 60'032'830, maps = 1, attribute_result = hipErrorInvalidValue, forgotten = 0;
    EXPECT_FALSE(api::maps_pages(driver, 0));
    EXPECT_EQ(forgotten, 1);
}

TEST(HipApi, HostCallsGoTheOlderWayWhereTheNewerIsMissing) {
    TestDriver driver;
    int calls = 0;
    const auto count = [](void* data) { ++*static_cast<int*>(data); };
    launched.clear();
    EXPECT_EQ(api::launch_host(driver, nullptr, count, &calls), hipSuccess);
    EXPECT_EQ(launched, std::vector<void*>{&calls});
    EXPECT_EQ(calls, 0);
    driver.launch_host = nullptr;
    EXPECT_EQ(api::launch_host(driver, nullptr, count, &calls), hipSuccess);
    EXPECT_EQ(calls, 1);
    callback_result = hipErrorInvalidHandle;  // the call is freed and never made
    EXPECT_EQ(api::launch_host(driver, nullptr, count, &calls), hipErrorInvalidHandle);
    EXPECT_EQ(calls, 1);
}

}  // namespace
