// The allocation functions of PyTorch's memory pools whose memory is from sh_alloc(). libstagehand/torch/_pool_hooks.py
// loads this library.
//
// PyTorch gives these functions a size, a device and a stream, but nothing that tells the pool. So each pool has a pair
// of functions of its own, in a slot. A slot keeps its device open until it is closed and all its memory is freed.
#include <stagehand/stagehand.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>

#define POOL_HOOK extern "C" __attribute__((visibility("default")))

namespace {

constexpr std::size_t kSlots = 64;

struct Slot {
    sh_device* device = nullptr;  // nullptr: the slot is free
    bool open = false;
    uint64_t allocations = 0;
    int ordinal = 0;
    uint32_t contents = 0, format = 0;
    char tag[64] = {};
    char error[1024] = {};  // of the last allocation or free that failed
};

std::mutex slots_mutex;
std::array<Slot, kSlots> slots;

void note_failure(Slot& slot) {
    char text[sizeof slot.error];
    if (!sh_last_error(text, sizeof text)) text[0] = 0;
    const std::lock_guard<std::mutex> lock(slots_mutex);
    std::memcpy(slot.error, text, sizeof text);
}

// Takes the device of a slot that is not needed any more. The caller closes it, without the lock.
sh_device* take_unused_device(Slot& slot) {
    if (slot.open || slot.allocations) return nullptr;
    return std::exchange(slot.device, nullptr);
}

// Counts an allocation before it is made, so that the device stays open. Returns false if the slot is not for it.
bool begin_allocation(Slot& slot, int ordinal) {
    const std::lock_guard<std::mutex> lock(slots_mutex);
    if (slot.open && ordinal == slot.ordinal) {
        ++slot.allocations;
        return true;
    }
    const char* const format = slot.open ? "the pool is for device %d, and device %d was asked for memory"
                                         : "the pool of device %d is closed, and device %d was asked for memory";
    std::snprintf(slot.error, sizeof slot.error, format, slot.ordinal, ordinal);
    return false;
}

void end_allocation(Slot& slot) {
    sh_device* unused;
    {
        const std::lock_guard<std::mutex> lock(slots_mutex);
        --slot.allocations;
        unused = take_unused_device(slot);
    }
    sh_device_close(unused);
}

// PyTorch reports an out-of-memory error if this returns NULL.
void* allocate(std::size_t index, ssize_t bytes, int ordinal) {
    Slot& slot = slots[index];
    if (bytes <= 0 || !begin_allocation(slot, ordinal)) return nullptr;
    sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
    options.tag = slot.tag;
    options.contents = slot.contents;
    options.format = slot.format;
    uint64_t address = 0;
    if (sh_alloc(slot.device, uint64_t(bytes), &options, &address) < 0) {
        note_failure(slot);
        end_allocation(slot);
    }
    return reinterpret_cast<void*>(uintptr_t(address));
}

void give_back(std::size_t index, void* memory) {
    if (!memory) return;
    Slot& slot = slots[index];
    // Memory that the driver failed to free counts on, so that its device stays open.
    if (sh_free(slot.device, uint64_t(reinterpret_cast<uintptr_t>(memory))) < 0) return note_failure(slot);
    end_allocation(slot);
}

}  // namespace

// Opens a slot on a device of the library, whose number in PyTorch is `ordinal`. Returns the slot, or a negative
// status: SH_ERROR_UNSUPPORTED if all slots are in use.
POOL_HOOK int32_t sh_pool_open(const char* device, int32_t ordinal, const char* tag, uint32_t contents,
                               uint32_t format) {
    sh_device* opened = nullptr;
    const sh_status status = sh_device_open(device, nullptr, &opened);
    if (status < 0) return status;
    {
        const std::lock_guard<std::mutex> lock(slots_mutex);
        for (std::size_t i = 0; i < slots.size(); ++i) {
            if (slots[i].device) continue;
            slots[i] = Slot{opened, true, 0, ordinal, contents, format, {}, {}};
            std::snprintf(slots[i].tag, sizeof slots[i].tag, "%s", tag);
            return int32_t(i);
        }
    }
    sh_device_close(opened);
    return SH_ERROR_UNSUPPORTED;
}

// Closes a slot. It allocates no more, and it keeps its device open until all its memory is freed.
POOL_HOOK void sh_pool_close(int32_t index) {
    sh_device* unused;
    {
        const std::lock_guard<std::mutex> lock(slots_mutex);
        slots[std::size_t(index)].open = false;
        unused = take_unused_device(slots[std::size_t(index)]);
    }
    sh_device_close(unused);
}

// Writes why the last allocation or free of a slot has failed, and forgets it.
POOL_HOOK void sh_pool_take_error(int32_t index, char* text, uint64_t capacity) {
    const std::lock_guard<std::mutex> lock(slots_mutex);
    Slot& slot = slots[std::size_t(index)];
    std::snprintf(text, std::size_t(capacity), "%s", slot.error);
    slot.error[0] = 0;
}

// The pairs sh_pool_alloc_00 to sh_pool_alloc_77: the numbers are octal, so that macros can count.
#define SLOT(number)                                                                         \
    POOL_HOOK void* sh_pool_alloc_##number(ssize_t bytes, int ordinal, void* /* stream */) { \
        return allocate(0##number, bytes, ordinal);                                          \
    }                                                                                        \
    POOL_HOOK void sh_pool_free_##number(void* memory, ssize_t, int, void* /* stream */) {   \
        give_back(0##number, memory);                                                        \
    }
#define EIGHT_SLOTS(digit) \
    SLOT(digit##0)         \
    SLOT(digit##1) SLOT(digit##2) SLOT(digit##3) SLOT(digit##4) SLOT(digit##5) SLOT(digit##6) SLOT(digit##7)
EIGHT_SLOTS(0)
EIGHT_SLOTS(1)
EIGHT_SLOTS(2)
EIGHT_SLOTS(3)
EIGHT_SLOTS(4)
EIGHT_SLOTS(5)
EIGHT_SLOTS(6)
EIGHT_SLOTS(7)
