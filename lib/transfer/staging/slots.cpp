#include "transfer/staging/slots.h"

#include <algorithm>
#include <new>

#include "base/log.h"
#include "base/once_more.h"

namespace stagehand::transfer {

Status Slots::allocate(BackendDevice& device, const StagingSize& size) {
    device_ = &device;
    Status status;
    for (uint64_t count = size.slots;; count = count / 2) {
        status = PinnedMemory::allocate(device, count * size.slot_bytes, &memory_);
        if (status.ok() || status.code() != SH_ERROR_OUT_OF_HOST_MEMORY || count / 2 < 2) break;
    }
    if (status.ok()) status = make_slots(device, size.slot_bytes);
    if (!status.ok()) free();
    return status;
}

Status Slots::make_slots(BackendDevice& device, uint64_t slot_bytes) {
    slot_bytes_ = slot_bytes;
    char* const begin = static_cast<char*>(memory_.data());
    const uint64_t bytes = memory_.bytes(), piece = memory_.piece_bytes();
    try {
        for (uint64_t at = 0; at + slot_bytes <= bytes; at += slot_bytes) {
            // No copy may span two registrations.
            if (piece && at / piece != (at + slot_bytes - 1) / piece) at = (at / piece + 1) * piece;
            if (at + slot_bytes > bytes) break;
            slots_.emplace_back().memory = begin + at;
        }
        free_.reserve(slots_.size());
        in_flight_.reserve(slots_.size());
        retired_.reserve(slots_.size());
        watched_.reserve(slots_.size());
    } catch (const std::bad_alloc&) {
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY);
    }
    for (Slot& slot : slots_) {
        SH_TRY(device.event_create(false, &slot.event));
        free_.push_back(&slot);
    }
    return Status();
}

Slot* Slots::take() {
    Slot* const slot = free_.back();
    free_.pop_back();
    return slot;
}

void Slots::give_back(Slot& slot) {
    slot.load = nullptr;
    slot.store = nullptr;
    free_.push_back(&slot);
}

std::span<Slot* const> Slots::watch() {
    watched_.assign(in_flight_.begin(), in_flight_.end());
    for (Slot* slot : watched_) slot->done = false;
    return watched_;
}

void Slots::look(BackendDevice& device, std::span<Slot* const> slots) {
    constexpr size_t kStreams = 8;
    sh_stream busy[kStreams];
    size_t busy_count = 0;
    for (Slot* slot : slots) {
        // Later slots of a busy stream are busy too.
        if (std::find(busy, busy + busy_count, slot->stream) != busy + busy_count) continue;
        uint32_t done = 0;
        Status status = device.event_query(slot->event, &done);
        if (!status.ok()) {
            const Status waited = device.event_synchronize(slot->event);
            done = waited.ok();
            if (!waited.ok()) slot->failure = status;
        }
        slot->done = done != 0;
        if (!done && busy_count < kStreams) busy[busy_count++] = slot->stream;
    }
}

void Slots::revive() {
    std::erase_if(retired_, [this](Slot* slot) {
        if (!slot->recorded) return false;
        slot->failure = Status();
        set_in_flight(*slot);
        return true;
    });
}

// Streams may be destroyed by now, so the function uses only events.
void Slots::free() {
    bool in_use = false;
    for (auto* list : {&in_flight_, &retired_})
        for (Slot* slot : *list)
            in_use |= !slot->recorded || !once_more([&] { return device_->event_synchronize(slot->event); }).ok();
    for (Slot& slot : slots_) {
        if (!slot.event) continue;
        if (Status status = once_more([&] { return device_->event_destroy(slot.event); }); !status.ok())
            log_line(SH_LOG_WARNING, "%s", status.text());
    }
    if (in_use) {
        log_line(SH_LOG_WARNING, "the staging buffers are not freed, because the device may still use them");
        memory_.abandon();
    }
    memory_.reset();
    for (auto* list : {&free_, &in_flight_, &retired_, &watched_}) list->clear();
    slots_.clear();
    slot_bytes_ = 0;
}

}  // namespace stagehand::transfer
