/* What each way to use the library is tested with: the version, the backends that are compiled in, and the contents of
 * a block. */
#include <stagehand/stagehand.h>
#include <stdio.h>

int main(void) {
    static const char bytes[] = "streamed";
    sh_backend_info infos[16];
    uint64_t count = 0;
    for (int i = 0; i < 16; ++i) infos[i].struct_size = sizeof infos[i];
    if (sh_backend_list(infos, 16, &count)) return 1;
    printf("version %u backends", (unsigned)sh_version());
    for (uint64_t i = 0; i < count && i < 16; ++i)
        if (infos[i].built_in) printf(" %s", infos[i].name);
    sh_device* device;
    sh_runtime* runtime;
    sh_block block;
    sh_segment source = SH_SEGMENT_INIT;
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    sh_view view = {.struct_size = sizeof(sh_view)};
    source.kind = SH_SOURCE_POINTER, source.pointer = bytes, source.bytes = sizeof bytes;
    desc.segments = &source, desc.segment_count = 1, desc.bytes = sizeof bytes;
    if (sh_device_open("host", NULL, &device) || sh_runtime_create(device, NULL, &runtime)) return 1;
    if (sh_register_blocks(runtime, &desc, 1, &block) || sh_step_begin(runtime, NULL)) return 1;
    if (sh_acquire(runtime, block, SH_STREAM_HOST, 0, &view)) return 1;
    printf(" says %s\n", (const char*)view.address);
    if (sh_release(runtime, block, SH_STREAM_HOST) || sh_step_end(runtime)) return 1;
    sh_runtime_destroy(runtime);
    sh_device_close(device);
    return 0;
}
