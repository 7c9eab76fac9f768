#include "core/spill/packed_copies.h"

#include <cstring>
#include <vector>

#include "base/log.h"
#include "base/no_throw.h"
#include "codec/tile.h"
#include "core/spill/checksum.h"
#include "transfer/host/pinned_memory.h"

namespace stagehand::core {
namespace {

constexpr uint64_t kLeast = 256 << 10;  // fewer bytes take no longer to copy than a program to begin
constexpr uint64_t kAlignment = 16;

codec::FloatFormat format_of(const SavedCopy& copy) { return static_cast<codec::FloatFormat>(copy.format); }
uint64_t elements_of(const SavedCopy& copy) { return copy.span.bytes / codec::fields_of(format_of(copy)).bytes(); }

// The elements may lie in pinned memory, too, so that no device memory is needed.
Status try_packing(BackendDevice& device, sh_stream stream) {
    constexpr codec::FloatFormat kFormat = codec::FloatFormat::bf16;
    constexpr uint64_t kBytes = codec::kTileElements * codec::fields_of(kFormat).bytes();
    transfer::PinnedMemory memory;
    SH_TRY(transfer::PinnedMemory::allocate(device, kBytes + codec::tile_stride(kFormat), &memory));
    if (!memory.pinned()) return Status(SH_ERROR_UNSUPPORTED, "host memory cannot be pinned");
    auto* const elements = static_cast<uint16_t*>(memory.data());
    const auto element = [](uint64_t i) { return static_cast<uint16_t>(0x3f80 + i % 256); };
    for (uint64_t i = 0; i < codec::kTileElements; i++) elements[i] = element(i);
    const sh_backend_tiles tiles = {sizeof tiles, static_cast<uint32_t>(kFormat), reinterpret_cast<uint64_t>(elements),
                                    static_cast<char*>(memory.data()) + kBytes, codec::kTileElements};
    Status status = device.pack_tiles(stream, tiles);
    if (status.ok()) status = device.stream_synchronize(stream);
    if (status.ok()) std::memset(elements, 0, kBytes);
    if (status.ok()) status = device.unpack_tiles(stream, tiles);
    const Status ended = device.stream_synchronize(stream);
    if (!ended.ok()) memory.abandon();
    if (status.ok()) status = ended;
    SH_TRY(std::move(status));
    for (uint64_t i = 0; i < codec::kTileElements; i++)
        if (elements[i] != element(i))
            return Status(SH_ERROR_INTERNAL, "what the device packs comes back with other bytes");
    return status;
}

}  // namespace

bool can_pack(BackendDevice& device, sh_stream stream) {
    const Status status = no_throw([&] {
        return device.packs_tiles() ? try_packing(device, stream)
                                    : Status(SH_ERROR_UNSUPPORTED, "the backend packs nothing");
    });
    if (!status.ok()) log_line(SH_LOG_INFO, "saved tensors cross the link as they are: %s", status.text());
    return status.ok();
}

bool may_be_packed(const SavedCopy& copy) {
    return copy.format && copy.span.bytes >= kLeast && copy.span.address % kAlignment == 0 &&
           copy.span.bytes % codec::fields_of(format_of(copy)).bytes() == 0;
}

uint64_t room_of(const SavedCopy& copy) {
    return copy.packed ? codec::bytes_of_tiles_apart(format_of(copy), elements_of(copy)) : copy.span.bytes;
}

Status check_address(const SavedCopy& copy, uint64_t address) {
    if (!copy.packed || copy.is_on_device() || address % kAlignment == 0) return Status();
    return Status(SH_ERROR_INVALID_ARGUMENT, "an address is not a multiple of 16, and its tensor has left packed");
}

sh_backend_tiles tiles_of(const SavedCopy& copy, uint64_t address) {
    return {sizeof(sh_backend_tiles), copy.format, address, copy.buffer->data, elements_of(copy)};
}

uint64_t checksum_in_host(const SavedCopy& copy) {
    if (!copy.packed) return checksum(copy.buffer->data, copy.span.bytes);
    std::vector<uint8_t> bytes(copy.span.bytes);
    codec::each_tile(format_of(copy), elements_of(copy), [&](const codec::TilePlace& tile) {
        const auto* const place = static_cast<const uint8_t*>(copy.buffer->data) + tile.place;
        (void)codec::unpack_tile(tile.format, codec::tile_at(place, tile.format, tile.elements), tile.elements,
                                 bytes.data() + tile.offset);
    });
    return checksum(bytes.data(), bytes.size());
}

}  // namespace stagehand::core
