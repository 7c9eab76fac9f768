// Keeps one thread of the GPU busy: it reads the clock until the time is over. The driver translates the program at its
// first use, so building it needs no CUDA compiler.
#include "gpu/busy.h"

namespace SH_GPU_NAMESPACE {
namespace {

constexpr char kProgram[] = R"(
.version 6.0
.target sm_50
.address_size 64

.visible .entry sh_busy(.param .u64 busy_ns)
{
    .reg .pred %before;
    .reg .u64 %time, %end;

    ld.param.u64 %time, [busy_ns];
    mov.u64 %end, %globaltimer;
    add.u64 %end, %end, %time;
again:
    mov.u64 %time, %globaltimer;
    setp.lt.u64 %before, %time, %end;
    @%before bra again;
    ret;
}
)";

sh_status load(Device& device) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    SH_GPU_TRY(module_load, &module, kProgram);
    if (const api::Result result = driver()->module_function(&function, module, "sh_busy"); result != api::kSuccess) {
        driver()->module_unload(module);
        return failed(result, "module_function");
    }
    device.busy_module = module;
    device.busy_function = function;
    return SH_OK;
}

}  // namespace

sh_status queue_busy(Device& device, api::Stream stream, int64_t busy_ns, bool* out_queued) {
    {
        const std::lock_guard lock(device.busy_mutex);
        if (!device.busy_function)
            if (const sh_status status = load(device); status < 0) return status;
    }
    uint64_t time = static_cast<uint64_t>(busy_ns);
    void* arguments[] = {&time};
    SH_GPU_TRY(launch_kernel, static_cast<CUfunction>(device.busy_function), 1, 1, 1, 1, 1, 1, 0, stream, arguments,
               nullptr);
    *out_queued = true;
    return SH_OK;
}

void unload_busy(Device& device) {
    if (device.busy_module) driver()->module_unload(static_cast<CUmodule>(device.busy_module));
}

}  // namespace SH_GPU_NAMESPACE
