#include "core/occupancy/contents_read.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "core/occupancy/tag.h"

namespace stagehand::core {

namespace {

constexpr uint64_t kSector = 4096;             // what a direct read is a multiple of
constexpr uint64_t kPart = uint64_t(1) << 20;  // read at a time

struct Freed {
    void operator()(void* memory) const { std::free(memory); }
};

// Reads whole sectors into memory that a direct read accepts.
Status read_sectors(transfer::StagingRange& range, char* sectors, uint64_t offset, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes;) {
        const ssize_t got = pread(range.file().descriptor(), sectors + done, bytes - done,
                                  static_cast<off_t>(range.begin() + offset + done));
        if (got > 0)
            done += static_cast<uint64_t>(got);
        else if (got < 0 && errno == EINVAL && fcntl(range.file().descriptor(), F_GETFL) & O_DIRECT)
            range.file().give_up_direct();
        else if (got == 0 || errno != EINTR)
            return range.file().failed(false, got == 0 ? EIO : errno);
    }
    return Status();
}

Status read_file(transfer::StagingRange& range, uint64_t offset, uint64_t bytes, char* out) {
    const std::unique_ptr<char, Freed> sectors(static_cast<char*>(std::aligned_alloc(kSector, kPart)));
    if (!sectors) return Status(SH_ERROR_OUT_OF_HOST_MEMORY, "there is no memory to read a file of contents");
    while (bytes) {
        const uint64_t skipped = offset % kSector, taken = std::min(bytes, kPart - skipped);
        const uint64_t wanted = (skipped + taken + kSector - 1) / kSector * kSector;
        SH_TRY(read_sectors(range, sectors.get(), offset - skipped, wanted));
        std::memcpy(out, sectors.get() + skipped, taken);
        out += taken;
        offset += taken;
        bytes -= taken;
    }
    return Status();
}

// A part of a page, tile by tile.
void read_packed(const Extent& extent, const Page& page, uint64_t begin, uint64_t bytes, char* out) {
    const codec::TilesApart all = extent.tiles_at(page, page.bytes);
    std::vector<char> contents(codec::bytes_of_tile(all.format));
    codec::each_tile(all, [&](const codec::TileApart& tile) {
        const uint64_t from = std::max(begin, tile.offset);
        const uint64_t to = std::min(begin + bytes, tile.offset + contents.size());
        if (from >= to) return;
        codec::unpack_tiles({all.format, tile.elements, tile.body, tile.header}, contents.data());
        std::memcpy(out + (from - begin), contents.data() + (from - tile.offset), to - from);
    });
}

}  // namespace

Status read_contents(const Extent& extent, uint64_t offset, uint64_t bytes, void* out) {
    const uint64_t end = offset + bytes;
    for (const Handle& handle : extent.handles()) {
        if (handle.offset >= end || handle.offset + handle.bytes <= offset) continue;
        if (handle.filled)
            return Status(SH_ERROR_INVALID_STATE, "a part of the contents of the tag \"" +
                                                      std::string(extent.tag->info.tag) +
                                                      "\" is on the device, because a pause failed: resume it");
        for (const Page& page : extent.pages().subspan(handle.first_page, handle.page_count)) {
            const uint64_t from = std::max(offset, page.offset), to = std::min(end, page.offset + page.bytes);
            if (from >= to) continue;
            char* const target = static_cast<char*>(out) + (from - offset);
            if (extent.leaving != Leaving::stage || !page.used)
                std::memset(target, 0, to - from);
            else if (extent.file())
                SH_TRY(read_file(*extent.file(), page.place + (from - page.offset), to - from, target));
            else if (page.packed)
                read_packed(extent, page, from - page.offset, to - from, target);
            else
                std::memcpy(target, static_cast<const char*>(extent.host_at(page)) + (from - page.offset), to - from);
        }
    }
    return Status();
}

}  // namespace stagehand::core
