#include "transfer/staging/gather.h"

namespace stagehand::transfer {
namespace {

constexpr uint64_t kLine = 64;
constexpr uint64_t kDirectAlignment = 4096;
constexpr uint64_t kWorthALine = 4 << 10;
constexpr uint64_t kWorthAPage = 64 << 10;

// Returns the number of bytes to leave free before a range whose first read has `bytes`. A direct read needs no extra
// buffer only if its target has the same alignment as the bytes in the file.
uint64_t padding(const Source& source, uint64_t source_offset, uint64_t bytes, uint64_t position) {
    if (source.direct_file >= 0 && bytes >= kWorthAPage)
        return (source.file_offset + source_offset - position) % kDirectAlignment;
    return bytes >= kWorthALine ? (kLine - position % kLine) % kLine : 0;
}

}  // namespace

uint64_t direct_padding(const Source& source, uint64_t source_offset) {
    return source.direct_file >= 0 ? (source.file_offset + source_offset) % kDirectAlignment : 0;
}

Status lay_out(const StagedLoad& load, const Piece& piece, char* slot, uint64_t slot_bytes,
               std::vector<Command>* out_commands, std::vector<ReadRequest>* out_requests) {
    out_commands->clear();
    out_requests->clear();
    uint64_t position = 0;
    uint64_t left = piece.bytes;
    bool consistent = true;
    for_each_part(
        std::span<const StagedExtent>(load.extents), piece,
        [&](const StagedExtent& extent, uint64_t offset, uint64_t bytes) {
            consistent = consistent && extent.source && extent.waits.first <= load.waits.size() &&
                         extent.waits.count <= load.waits.size() - extent.waits.first;
            if (!consistent) return;
            const uint64_t source_offset = extent.source_offset + offset;
            const uint64_t address = extent.device_address + offset;
            Command* const last = out_commands->empty() ? nullptr : &out_commands->back();
            const bool neighbours = last && last->end() == address;
            if (!neighbours) {
                const uint64_t pad = padding(*extent.source, source_offset, bytes, position);
                if (pad <= slot_bytes - position - left) position += pad;
            }
            if (neighbours && last->waits.first == extent.waits.first && last->waits.count == extent.waits.count)
                last->bytes += bytes;
            else
                out_commands->push_back({Command::Kind::to_device, neighbours, address,
                                         reinterpret_cast<uint64_t>(slot + position), bytes, extent.waits});
            out_requests->push_back({extent.source, source_offset, slot + position, bytes});
            position += bytes;
            left -= bytes;
        });
    return consistent
               ? Status()
               : Status(SH_ERROR_INTERNAL,
                        "a staged load has an extent without a source, or with waits outside the list of the load");
}

}  // namespace stagehand::transfer
