/*
 * An engine with a CUDA kernel: twelve layers of weights, 96 MiB, stream through 32 MiB of device memory.
 *
 *     cc cuda_kernels.c $(pkg-config --cflags --libs stagehand) -I/usr/local/cuda/include -lcuda && ./a.out
 */
#include <cuda.h>
#include <stagehand/stagehand.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 12, N = 2 << 20 }; /* a layer has N floats */

/* x[i] += w[i]. An engine compiles its kernels with nvcc, of course. */
static const char kernel[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry add(.param .u64 x, .param .u64 w) {\n"
    ".reg .b32 %r<4>; .reg .b64 %d<4>; .reg .f32 %f<3>;\n"
    "mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r3, %r0, %r1, %r2;\n"
    "mul.wide.u32 %d0, %r3, 4; ld.param.u64 %d1, [x]; ld.param.u64 %d2, [w];\n"
    "add.u64 %d1, %d1, %d0; add.u64 %d2, %d2, %d0;\n"
    "ld.global.f32 %f0, [%d1]; ld.global.f32 %f1, [%d2]; add.f32 %f2, %f0, %f1; st.global.f32 [%d1], %f2; ret;\n}\n";

static void check(int failed, const char* what) {
    char text[512] = "";
    if (!failed) return;
    sh_last_error(text, sizeof text);
    fprintf(stderr, "%s failed: %s\n", what, text);
    exit(1);
}
#define CUDA(call) check((call) != CUDA_SUCCESS, #call)
#define SH(call) check((call) < 0, #call)

int main(void) {
    /* The library uses the primary context, so its addresses and the engine's streams belong together. */
    CUcontext context;
    CUmodule module;
    CUfunction add;
    CUstream stream;
    CUdeviceptr x;
    CUDA(cuInit(0));
    CUDA(cuDevicePrimaryCtxRetain(&context, 0));
    CUDA(cuCtxSetCurrent(context));
    CUDA(cuModuleLoadData(&module, kernel));
    CUDA(cuModuleGetFunction(&add, module, "add"));
    CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUDA(cuMemAlloc(&x, N * sizeof(float)));
    CUDA(cuMemsetD32(x, 0, N));

    sh_device* device;
    sh_runtime* runtime;
    sh_block blocks[LAYERS];
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.budget_bytes = 32 << 20;
    SH(sh_device_open("cuda:0", &options, &device));
    SH(sh_runtime_create(device, NULL, &runtime));
    void* weights[LAYERS];
    for (int layer = 0; layer < LAYERS; layer++) {
        SH(sh_host_alloc(device, N * sizeof(float), &weights[layer], NULL)); /* pinned */
        for (int i = 0; i < N; i++) ((float*)weights[layer])[i] = (float)(layer + i % 7);
        sh_segment source = SH_SEGMENT_INIT;
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        source.kind = SH_SOURCE_POINTER;
        source.pointer = weights[layer];
        source.bytes = desc.bytes = N * sizeof(float);
        desc.segments = &source;
        desc.segment_count = 1;
        SH(sh_register_blocks(runtime, &desc, 1, &blocks[layer]));
    }

    enum { STEPS = 3 };
    for (int step = 0; step < STEPS; step++) { /* nothing here waits for the device */
        SH(sh_step_begin(runtime, NULL));
        for (int layer = 0; layer < LAYERS; layer++) {
            sh_view view = {.struct_size = sizeof(sh_view)};
            SH(sh_acquire(runtime, blocks[layer], (sh_stream)(uintptr_t)stream, 0, &view));
            void* arguments[] = {&x, &view.address};
            CUDA(cuLaunchKernel(add, N / 256, 1, 1, 256, 1, 1, 0, stream, arguments, NULL));
            SH(sh_release(runtime, blocks[layer], (sh_stream)(uintptr_t)stream));
        }
        SH(sh_step_end(runtime));
    }
    static float result[N];
    CUDA(cuStreamSynchronize(stream));
    CUDA(cuMemcpyDtoH(result, x, sizeof result));
    for (int i = 0; i < N; i++)
        check(result[i] != STEPS * (float)(LAYERS * (LAYERS - 1) / 2 + LAYERS * (i % 7)), "the comparison");
    sh_memory_info memory = {.struct_size = sizeof(sh_memory_info)};
    SH(sh_device_get_memory(device, &memory));
    check(memory.peak_bytes > options.budget_bytes, "the budget");
    puts("all sums are right, and the weights took at most 32 MiB of the card");

    sh_runtime_destroy(runtime);
    for (int layer = 0; layer < LAYERS; layer++) SH(sh_host_free(device, weights[layer]));
    sh_device_close(device);
    return 0;
}
