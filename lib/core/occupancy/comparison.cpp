#include "core/occupancy/comparison.h"

#include <vector>

#include "base/log.h"
#include "base/no_throw.h"

namespace stagehand::core {
namespace {

// What backends can hash.
constexpr uint64_t kHashed = 4096, kAligned = 16;

template <class Visit>
void for_each_page(std::span<Extent* const> extents, Visit&& visit) {
    for (Extent* const extent : extents) {
        if (extent->leaving != Leaving::stage) continue;
        for (const Handle& handle : extent->handles())
            if (handle.filled)
                for (Page& page : extent->pages_of(handle)) visit(*extent, page);
    }
}

bool equal(const sh_backend_digest& a, const sh_backend_digest& b) {
    return a.words[0] == b.words[0] && a.words[1] == b.words[1];
}

Status compare(BackendDevice& device, std::span<Extent* const> extents, sh_stream stream) {
    std::vector<Page*> pages;
    std::vector<sh_backend_range> ranges;
    for_each_page(extents, [&](Extent& extent, Page& page) {
        const uint64_t address = extent.address() + page.offset;
        if (!page.copied || page.bytes % kHashed || address % kAligned) return;
        pages.push_back(&page);
        ranges.push_back({address, page.bytes});
    });
    if (pages.empty()) return Status();
    std::vector<sh_backend_digest> digests(ranges.size());
    SH_TRY(device.contents_hash(stream, ranges.size(), ranges.data(), digests.data()));
    for (size_t i = 0; i < pages.size(); i++) {
        Page& page = *pages[i];
        page.compared = true;
        page.found = digests[i];
        page.copied = !(page.on_host && page.hashed && equal(page.digest, page.found));
    }
    return Status();
}

}  // namespace

uint64_t choose_copies(BackendDevice& device, std::span<Extent* const> extents, bool all, sh_stream stream) noexcept {
    for_each_page(extents, [&](Extent& extent, Page& page) {
        page.compared = false;
        page.copied = page.used && (all || !extent.keeping().constant || !page.same);
    });
    if (!all && device.has_contents_hash() && !device.has(SH_BACKEND_CONTENTLESS)) {
        const Status compared = no_throw([&] { return compare(device, extents, stream); });
        if (!compared.ok() && compared.code() != SH_ERROR_UNSUPPORTED)
            log_line(SH_LOG_WARNING, "all contents are copied, changed or not: %s", compared.text());
    }
    uint64_t unchanged = 0;
    for_each_page(extents, [&](Extent&, Page& page) { unchanged += page.used && !page.copied ? page.bytes : 0; });
    return unchanged;
}

}  // namespace stagehand::core
