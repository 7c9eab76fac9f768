// Packs elements on the GPU into host memory, and unpacks them from there. The programs read and write host memory over
// the link themselves. The driver translates them at their first use.
#include "gpu/pack_tiles.h"

#include <algorithm>

#include "pack_ptx.h"
#include "programs.h"
#include "support/packed.h"
#include "unpack_tiles_ptx.h"

namespace SH_GPU_NAMESPACE {
namespace {

constexpr unsigned kTileThreads = 256;
// Tiles that are under way at once. More are no faster on an H100, whose link these fill.
constexpr unsigned kTilesToPack = 24, kTilesToUnpack = 96;
// Tiles that a group of threads has at once, by format, and thus on one processor of the GPU.
constexpr unsigned kPackAtOnce[] = {2, 2, 1, 2, 2}, kUnpackAtOnce = 4;

// In the order of SH_BACKEND_FORMAT_*.
constexpr const char* kPackPrograms[] = {"sh_pack_bf16", "sh_pack_f16", "sh_pack_f32", "sh_pack_f8_e4m3",
                                         "sh_pack_f8_e5m2"};
constexpr const char* kUnpackPrograms[] = {"sh_unpack_tiles_bf16", "sh_unpack_tiles_f16", "sh_unpack_tiles_f32",
                                           "sh_unpack_tiles_f8_e4m3", "sh_unpack_tiles_f8_e5m2"};

sh_status launch(Device& device, Programs& programs, const char* source, const char* const (&names)[kFormats],
                 unsigned tiles_at_once, unsigned most, sh_stream stream, const sh_backend_tiles& tiles,
                 void** arguments) {
    SH_GPU_ENTER(device);
    if (const sh_status status = load(device, programs, source, names); status < 0) return status;
    const uint64_t count = (tiles.elements + SH_BACKEND_TILE_ELEMENTS - 1) / SH_BACKEND_TILE_ELEMENTS;
    const auto groups = static_cast<unsigned>((std::min<uint64_t>(count, most) + tiles_at_once - 1) / tiles_at_once);
    SH_GPU_TRY(launch_kernel, static_cast<CUfunction>(programs.functions[tiles.format - 1]), groups, 1, 1,
               kTileThreads * tiles_at_once, 1, 1, 0, (api::Stream)(stream), arguments, nullptr);
    return SH_OK;
}

}  // namespace

sh_status pack_tiles(sh_backend_device* handle, sh_stream stream, const sh_backend_tiles* tiles) {
    if (const sh_status status = support::check_tiles(*tiles); status < 0) return status;
    Device& device = device_of(handle);
    sh_backend_tiles own = *tiles;
    void* arguments[] = {&own.device, &own.elements, &own.host, &own.headers};
    return launch(device, device.pack_programs, kPackProgram, kPackPrograms, kPackAtOnce[tiles->format - 1],
                  kTilesToPack, stream, *tiles, arguments);
}

sh_status unpack_tiles(sh_backend_device* handle, sh_stream stream, const sh_backend_tiles* tiles) {
    if (const sh_status status = support::check_tiles(*tiles); status < 0) return status;
    Device& device = device_of(handle);
    sh_backend_tiles own = *tiles;
    void* arguments[] = {&own.host, &own.headers, &own.elements, &own.device};
    return launch(device, device.unpack_tiles_programs, kUnpackTilesProgram, kUnpackPrograms, kUnpackAtOnce,
                  kTilesToUnpack, stream, *tiles, arguments);
}

void unload_pack_tiles(Device& device) {
    unload(device.pack_programs);
    unload(device.unpack_tiles_programs);
}

}  // namespace SH_GPU_NAMESPACE
