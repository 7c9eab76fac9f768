// Hashes contents on the GPU, at the speed of its memory. The driver translates the program at its first use.
#include "gpu/content_hash.h"

#include <algorithm>

#include "content_hash_ptx.h"

namespace SH_GPU_NAMESPACE {
namespace {

// One launch hashes this many ranges. The ranges and the digests have 256 KiB of device memory.
constexpr uint64_t kAtOnce = 8192;
constexpr uint64_t kRangeBytes = kAtOnce * sizeof(sh_backend_range);
constexpr unsigned kThreads = 256;

sh_status load_hash(Device& device) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    api::Address buffer = {};
    SH_GPU_TRY(module_load, &module, kContentHashProgram);
    api::Result result = driver()->module_function(&function, module, "sh_content_hash");
    if (result == api::kSuccess)
        result = driver()->allocate(&buffer, kRangeBytes + kAtOnce * sizeof(sh_backend_digest));
    if (result != api::kSuccess) {
        driver()->module_unload(module);
        return failed(result, "loading the program that hashes contents");
    }
    device.hash_module = module;
    device.hash_function = function;
    device.hash_buffer = buffer;
    return SH_OK;
}

sh_status hash_some(Device& device, api::Stream stream, uint64_t count, const sh_backend_range* ranges,
                    sh_backend_digest* out_digests) {
    api::Address from = device.hash_buffer, to = device.hash_buffer + kRangeBytes;
    void* arguments[] = {&from, &to};
    SH_GPU_TRY(copy_to_device, from, ranges, count * sizeof *ranges, stream);
    SH_GPU_TRY(launch_kernel, static_cast<CUfunction>(device.hash_function), static_cast<unsigned>(count), 1, 1,
               kThreads, 1, 1, 0, stream, arguments, nullptr);
    SH_GPU_TRY(copy_to_host, out_digests, to, count * sizeof *out_digests, stream);
    SH_GPU_TRY(stream_synchronize, stream);
    return SH_OK;
}

}  // namespace

sh_status contents_hash(sh_backend_device* handle, sh_stream stream, uint64_t count, const sh_backend_range* ranges,
                        sh_backend_digest* out_digests) {
    Device& device = device_of(handle);
    SH_GPU_ENTER(device);
    const std::lock_guard lock(device.hash_mutex);
    if (!device.hash_function)
        if (const sh_status status = load_hash(device); status < 0) return status;
    for (uint64_t i = 0; i < count; i += kAtOnce) {
        const uint64_t some = std::min(kAtOnce, count - i);
        const sh_status status = hash_some(device, (api::Stream)(stream), some, ranges + i, out_digests + i);
        if (status < 0) return status;
    }
    return SH_OK;
}

void unload_content_hash(Device& device) {
    if (!device.hash_module) return;
    (void)driver()->deallocate(device.hash_buffer);
    driver()->module_unload(static_cast<CUmodule>(device.hash_module));
}

}  // namespace SH_GPU_NAMESPACE
