// Unpacks weights on the GPU.
#include "gpu/unpack.h"

#include <algorithm>

#include "programs.h"
#include "support/packed.h"
#include "unpack_ptx.h"

namespace SH_GPU_NAMESPACE {
namespace {

constexpr unsigned kUnpackThreads = 256;
constexpr uint64_t kTileElements = 8192;

struct Places {
    uint32_t at[SH_BACKEND_UNPACK_CHUNKS + 1];
};

// In the order of SH_BACKEND_FORMAT_*.
constexpr const char* kPrograms[] = {"sh_unpack_bf16", "sh_unpack_f16", "sh_unpack_f32", "sh_unpack_f8_e4m3",
                                     "sh_unpack_f8_e5m2"};

}  // namespace

sh_status unpack(sh_backend_device* handle, sh_stream stream, const sh_backend_packed* packed) {
    Device& device = device_of(handle);
    if (const sh_status status = support::check_packed(*packed); status < 0) return status;
    SH_GPU_ENTER(device);
    if (const sh_status status = load(device, device.unpack_programs, kUnpackProgram, kPrograms); status < 0)
        return status;
    api::Address from = packed->from, to = packed->to, failed_word = packed->failed;
    uint64_t elements = packed->elements;
    Places places = {};
    std::copy_n(packed->places, packed->chunks + 1, places.at);
    void* arguments[] = {&from, &places, &elements, &to, &failed_word};
    const uint64_t groups = (elements + kTileElements - 1) / kTileElements;
    SH_GPU_TRY(launch_kernel, static_cast<CUfunction>(device.unpack_programs.functions[packed->format - 1]),
               static_cast<unsigned>(groups), 1, 1, kUnpackThreads, 1, 1, 0, (api::Stream)(stream), arguments, nullptr);
    return SH_OK;
}

void unload_unpack(Device& device) { unload(device.unpack_programs); }

}  // namespace SH_GPU_NAMESPACE
