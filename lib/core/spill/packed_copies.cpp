#include "core/spill/packed_copies.h"

#include <vector>

#include "core/spill/checksum.h"

namespace stagehand::core {
namespace {

constexpr uint64_t kLeast = 256 << 10;  // fewer bytes take no longer to copy than a program to begin

codec::FloatFormat format_of(const SavedCopy& copy) { return static_cast<codec::FloatFormat>(copy.format); }
uint64_t elements_of(const SavedCopy& copy) { return copy.span.bytes / codec::fields_of(format_of(copy)).bytes(); }

codec::TilesApart in_host(const SavedCopy& copy) {
    const codec::FloatFormat format = format_of(copy);
    const uint64_t elements = elements_of(copy);
    auto* const bodies = static_cast<uint8_t*>(copy.buffer->data);
    return {format, elements, bodies, bodies + codec::room_for_bodies(format, elements)};
}

}  // namespace

bool may_be_packed(const SavedCopy& copy) {
    return copy.format && copy.span.bytes >= kLeast && copy.span.address % kPackedAlignment == 0 &&
           copy.span.bytes % codec::fields_of(format_of(copy)).bytes() == 0;
}

uint64_t room_of(const SavedCopy& copy) {
    if (!copy.packed) return copy.span.bytes;
    return codec::room_for_bodies(format_of(copy), elements_of(copy)) + codec::room_for_headers(elements_of(copy));
}

Status check_address(const SavedCopy& copy, uint64_t address) {
    if (!copy.packed || copy.is_on_device() || address % kPackedAlignment == 0) return Status();
    return Status(SH_ERROR_INVALID_ARGUMENT, "an address is not a multiple of 16, and its tensor has left packed");
}

sh_backend_tiles tiles_of(const SavedCopy& copy, uint64_t address) { return tiles_at(address, in_host(copy)); }

uint64_t checksum_in_host(const SavedCopy& copy) {
    if (!copy.packed) return checksum(copy.buffer->data, copy.span.bytes);
    std::vector<uint8_t> bytes(copy.span.bytes);
    codec::unpack_tiles(in_host(copy), bytes.data());
    return checksum(bytes.data(), bytes.size());
}

}  // namespace stagehand::core
