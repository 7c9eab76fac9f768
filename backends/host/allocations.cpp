#include "host/allocations.h"

#include <cinttypes>

#include "support/last_error.h"

namespace stagehand::host {

using support::fail;
using support::guarded;

sh_status Allocations::map_new(uint64_t address, uint64_t bytes) {
    sh_backend_page page = 0;
    const auto piece = pieces_.try_emplace(address).first;  // may run out of memory, so it comes first
    sh_status status = guarded([&] { return memory_.create(bytes, 1, &page); });
    if (status >= 0 && (status = guarded([&] { return memory_.map(address, bytes, 1, &page); })) < 0)
        guarded([&] { return memory_.destroy(bytes, 1, &page); });
    if (status < 0) {
        pieces_.erase(piece);
        return status;
    }
    piece->second = {bytes, page};
    return SH_OK;
}

sh_status Allocations::reserve(uint64_t bytes, uint64_t alignment, uint64_t* out_address) {
    std::lock_guard lock(mutex_);
    uint64_t address = 0;
    if (sh_status status = memory_.reserve(bytes, alignment, &address); status < 0) return status;
    if (sh_status status = guarded([&] { return map_new(address, bytes); }); status < 0) {
        memory_.free(address, bytes);
        return status;
    }
    *out_address = address;
    return SH_OK;
}

sh_status Allocations::free(uint64_t address, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    const auto piece = pieces_.find(address);
    if (piece == pieces_.end() || piece->second.bytes != bytes) {
        return fail(SH_ERROR_INVALID_ARGUMENT, "no reservation of %" PRIu64 " bytes exists at %#" PRIx64, bytes,
                    address);
    }
    const sh_backend_page page = piece->second.page;
    if (sh_status status = memory_.unmap(address, bytes, 1); status < 0) return status;
    if (sh_status status = guarded([&] { return memory_.destroy(bytes, 1, &page); }); status < 0) {
        guarded([&] { return memory_.map(address, bytes, 1, &page); });  // restores the mapping
        return status;
    }
    pieces_.erase(piece);
    return memory_.free(address, bytes);
}

}  // namespace stagehand::host
