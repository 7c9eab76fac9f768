// Manages physical pages, addresses, mappings and pinned host memory.
#include <cinttypes>

#include "gpu/device.h"
#include "support/last_error.h"

namespace SH_GPU_NAMESPACE {
namespace {

sh_status no_pages() { return support::fail(SH_ERROR_UNSUPPORTED, "the device does not map memory by pages"); }

}  // namespace

sh_status memory_info(sh_backend_device* device, uint64_t* out_free, uint64_t* out_total) {
    SH_GPU_ENTER(device_of(device));
    size_t free = 0, total = 0;
    SH_GPU_TRY(memory_info, &free, &total);
    *out_free = free;
    *out_total = total;
    return SH_OK;
}

sh_status pages_create(sh_backend_device* device, uint64_t page_bytes, uint64_t count, sh_backend_page* out_pages) {
    if (!device_of(device).maps_pages) return no_pages();
    SH_GPU_ENTER(device_of(device));
    const auto properties = api::page_properties(device_of(device).index);
    for (uint64_t i = 0; i < count; i++) {
        api::Page page = {};
        const api::Result result = driver()->page_create(&page, page_bytes, &properties, 0);
        if (result != api::kSuccess) {
            while (i-- > 0) (void)driver()->page_release(native_page(out_pages[i]));
            return failed(result, "page_create");
        }
        out_pages[i] = (sh_backend_page)(page);
    }
    return SH_OK;
}

// A page that the driver refuses to release is lost, and no caller can change that. The call fails only if the driver
// refuses all pages, because nothing has changed then.
sh_status pages_destroy(sh_backend_device* device, uint64_t, uint64_t count, const sh_backend_page* pages) {
    if (!device_of(device).maps_pages) return no_pages();
    SH_GPU_ENTER(device_of(device));
    sh_status status = SH_OK;
    uint64_t refused = 0;
    for (uint64_t i = 0; i < count; i++) {
        const api::Result result = driver()->page_release(native_page(pages[i]));
        if (result == api::kSuccess) continue;
        status = failed(result, "page_release");
        refused++;
    }
    return refused == count ? status : SH_OK;
}

// Without pages, addresses come with their memory.
sh_status range_reserve(sh_backend_device* device, uint64_t bytes, uint64_t alignment, uint64_t* out_address) {
    SH_GPU_ENTER(device_of(device));
    api::Address address = {};
    if (device_of(device).maps_pages)
        SH_GPU_TRY(range_reserve, &address, bytes, alignment, api::Address{}, 0);
    else
        SH_GPU_TRY(allocate, &address, bytes);
    *out_address = (uint64_t)(address);
    return SH_OK;
}

sh_status range_free(sh_backend_device* device, uint64_t address, uint64_t bytes) {
    SH_GPU_ENTER(device_of(device));
    if (device_of(device).maps_pages)
        SH_GPU_TRY(range_free, native_address(address), bytes);
    else
        SH_GPU_TRY(deallocate, native_address(address));
    return SH_OK;
}

sh_status pages_map(sh_backend_device* device, uint64_t address, uint64_t page_bytes, uint64_t count,
                    const sh_backend_page* pages) {
    if (!device_of(device).maps_pages) return no_pages();
    SH_GPU_ENTER(device_of(device));
    uint64_t mapped = 0;
    api::Result result = api::kSuccess;
    const char* call = "page_map";
    for (; mapped < count && result == api::kSuccess; mapped++) {
        result = driver()->page_map(native_address(address + mapped * page_bytes), page_bytes, 0,
                                    native_page(pages[mapped]), 0);
        if (result != api::kSuccess) break;
    }
    if (result == api::kSuccess && count) {
        const auto access = api::read_and_write(device_of(device).index);
        result = driver()->set_access(native_address(address), count * page_bytes, &access,
                                      1);  // one call for all pages: the cost depends on the calls and the pages
        call = "set_access";
    }
    if (result == api::kSuccess) return SH_OK;
    if (mapped) (void)driver()->range_unmap(native_address(address), mapped * page_bytes);
    return failed(result, call);
}

sh_status pages_unmap(sh_backend_device* device, uint64_t address, uint64_t page_bytes, uint64_t count) {
    if (!device_of(device).maps_pages) return no_pages();
    SH_GPU_ENTER(device_of(device));
    if (count) SH_GPU_TRY(range_unmap, native_address(address), count * page_bytes);
    return SH_OK;
}

sh_status host_register(sh_backend_device* device, void* memory, uint64_t bytes) {
    // Drivers refuse this size in one call, and some of them keep the error. So the driver is not called.
    constexpr uint64_t kRefused = uint64_t(512) << 30;
    if (bytes >= kRefused)
        return support::fail(SH_ERROR_UNSUPPORTED, "%" PRIu64 " bytes are too many to register in one call", bytes);
    SH_GPU_ENTER(device_of(device));
    SH_GPU_TRY(host_register, memory, bytes, api::kRegisterPortable);
    return SH_OK;
}

sh_status host_unregister(sh_backend_device* device, void* memory) {
    SH_GPU_ENTER(device_of(device));
    SH_GPU_TRY(host_unregister, memory);
    return SH_OK;
}

// One registration must cover the range, because drivers refuse a copy that spans two.
sh_status host_is_pinned(sh_backend_device* device, const void* memory, uint64_t bytes, uint32_t* out_pinned) {
    SH_GPU_ENTER(device_of(device));
    const uint64_t address = reinterpret_cast<uintptr_t>(memory);
    uint64_t start = 0, size = 0;
    const bool known = api::host_range(*driver(), memory, &start, &size);
    *out_pinned = known && address >= start && bytes <= size && address - start <= size - bytes;
    return SH_OK;
}

sh_status memory_is_reachable(sh_backend_device* device, uint64_t address, uint64_t bytes, uint32_t* out_reachable) {
    SH_GPU_ENTER(device_of(device));
    const api::DeviceIndex self = device_of(device).index;
    uint64_t start = 0, size = 0;
    int owner = 0;
    const bool known = api::device_range(*driver(), native_address(address), &start, &size, &owner);
    const bool whole = known && address >= start && bytes <= size && address - start <= size - bytes;
    *out_reachable = !whole          ? 0
                     : owner == self ? 2
                                     : api::reach_peer(*driver(), self, owner, native_address(address), start, size);
    return SH_OK;
}

}  // namespace SH_GPU_NAMESPACE
