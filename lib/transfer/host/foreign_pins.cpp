// Pins memory that the library does not own. The file keeps a table of the ranges that are pinned for each device.
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "base/size_text.h"
#include "transfer/host/pinned_memory.h"
#include "transfer/host/registration.h"

namespace stagehand::transfer {
namespace {

struct Pin {
    uint64_t bytes = 0;
    uint64_t users = 0;
    Registration registration;
};

// The key is the device and the address of the first byte. Ranges of one device do not overlap.
using Pins = std::map<std::pair<BackendDevice*, uint64_t>, Pin>;

struct Table {
    std::mutex mutex;
    Pins pins;
};

// The table is never destroyed, because memory may be unpinned while the process exits.
Table& table() {
    static Table* const instance = new Table;
    return *instance;
}

// Returns the pin that overlaps [begin, begin + bytes), or the end of the table.
Pins::iterator find_overlap(Pins& pins, BackendDevice& device, uint64_t begin, uint64_t bytes) {
    auto pin = pins.lower_bound({&device, begin});
    if (pin != pins.end() && pin->first.first == &device && pin->first.second < begin + bytes) return pin;
    if (pin == pins.begin()) return pins.end();
    --pin;
    return pin->first.first == &device && begin - pin->first.second < pin->second.bytes ? pin : pins.end();
}

// Returns true if [offset, offset + bytes) of a pin can be copied like a range with a registration of its own. The
// range lies in one piece of the pin then, or the piece boundaries of both are the same.
bool has_pieces(const Pin& pin, uint64_t offset, uint64_t bytes, uint64_t* out_piece_bytes) {
    const uint64_t piece = pin.registration.piece_bytes;
    const bool in_one = offset / piece == (offset + bytes - 1) / piece;
    *out_piece_bytes = in_one ? bytes : piece;
    return in_one || offset % piece == 0;
}

Status pin_new(Table& table, BackendDevice& device, void* memory, uint64_t bytes, uint64_t* out_piece_bytes) {
    uint32_t pinned = 0;
    SH_TRY(device.host_is_pinned(memory, bytes, &pinned));
    if (pinned) {  // the owner pinned the memory and keeps it pinned
        *out_piece_bytes = 0;
        return Status();
    }
    auto pin = table.pins.emplace(std::make_pair(&device, reinterpret_cast<uint64_t>(memory)), Pin{bytes, 1, {}}).first;
    Registration& registration = pin->second.registration;
    if (Status status = register_range(device, memory, bytes, &registration); !status.ok()) {
        unregister_range(device, memory, registration);
        table.pins.erase(pin);
        return status;
    }
    *out_piece_bytes = registration.piece_bytes;
    return Status();
}

}  // namespace

Status pin_foreign(BackendDevice& device, void* memory, uint64_t bytes, uint64_t* out_piece_bytes) {
    const uint64_t begin = reinterpret_cast<uint64_t>(memory);
    if (!memory || bytes == 0 || begin > UINT64_MAX - bytes)
        return Status(SH_ERROR_INVALID_ARGUMENT,
                      "cannot pin a range of host memory that is empty or not valid: " + exact_size_text(bytes));
    try {
        std::lock_guard lock(table().mutex);
        const auto pin = find_overlap(table().pins, device, begin, bytes);
        if (pin == table().pins.end()) return pin_new(table(), device, memory, bytes, out_piece_bytes);
        const uint64_t first = pin->first.second;
        uint64_t piece = 0;
        if (begin < first || bytes > pin->second.bytes || begin - first > pin->second.bytes - bytes ||
            !has_pieces(pin->second, begin - first, bytes, &piece)) {
            return Status(SH_ERROR_BUSY, "cannot pin host memory that overlaps another pinned range: " +
                                             exact_size_text(bytes) + " against " + exact_size_text(pin->second.bytes));
        }
        pin->second.users++;
        *out_piece_bytes = piece;
        return Status();
    } catch (const std::bad_alloc&) {
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY);
    }
}

void unpin_foreign(BackendDevice& device, void* memory, uint64_t bytes, uint64_t piece_bytes) {
    if (piece_bytes == 0) return;
    std::lock_guard lock(table().mutex);
    const auto pin = find_overlap(table().pins, device, reinterpret_cast<uint64_t>(memory), bytes);
    if (pin == table().pins.end() || --pin->second.users > 0) return;
    unregister_range(device, reinterpret_cast<void*>(pin->first.second), pin->second.registration);
    table().pins.erase(pin);
}

}  // namespace stagehand::transfer
