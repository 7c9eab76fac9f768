#include "core/device/tile_packing.h"

#include <cstring>

#include "base/once_more.h"
#include "transfer/host/pinned_memory.h"

namespace stagehand::core {

// The elements may lie in pinned memory, too, so that no device memory is needed.
Status try_packing(BackendDevice& device, sh_stream stream) {
    if (!device.packs_tiles()) return Status(SH_ERROR_UNSUPPORTED, "the backend packs nothing");
    constexpr codec::FloatFormat kFormat = codec::FloatFormat::bf16;
    constexpr uint64_t kElements = codec::kTileElements, kBytes = codec::bytes_of_tile(kFormat);
    transfer::PinnedMemory memory;
    SH_TRY(transfer::PinnedMemory::allocate(device, 2 * kBytes + codec::room_for_headers(kElements), &memory));
    if (!memory.pinned()) return Status(SH_ERROR_UNSUPPORTED, "host memory cannot be pinned");
    auto* const at = static_cast<uint8_t*>(memory.data());
    auto* const elements = reinterpret_cast<uint16_t*>(at);
    const auto element = [](uint64_t i) { return static_cast<uint16_t>(0x3f80 + i % 256); };
    for (uint64_t i = 0; i < kElements; i++) elements[i] = element(i);
    const sh_backend_tiles tiles =
        tiles_at(reinterpret_cast<uint64_t>(elements), {kFormat, kElements, at + kBytes, at + 2 * kBytes});
    Status status = device.pack_tiles(stream, tiles);
    if (status.ok()) status = device.stream_synchronize(stream);
    if (status.ok()) std::memset(elements, 0, kBytes);
    if (status.ok()) status = device.unpack_tiles(stream, tiles);
    const Status ended = once_more([&] { return device.stream_synchronize(stream); });
    if (!ended.ok()) memory.abandon();
    if (status.ok()) status = ended;
    SH_TRY(std::move(status));
    for (uint64_t i = 0; i < kElements; i++)
        if (elements[i] != element(i))
            return Status(SH_ERROR_INTERNAL, "what the device packs comes back with other bytes");
    return status;
}

}  // namespace stagehand::core
