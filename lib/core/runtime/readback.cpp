#include "core/runtime/readback.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/no_throw.h"
#include "base/unlocked.h"
#include "core/device/device_reader.h"
#include "core/memory/block_sources.h"
#include "transfer/source/reader.h"

namespace stagehand::core {
namespace {

// A segment, which stays readable when the block's records change.
struct Read {
    transfer::Source source;
    uint64_t address = 0, offset = 0;  // on the device, and in the block
    std::shared_ptr<transfer::PinnedMemory> copy;
};

std::string hex(char byte) {
    constexpr char kDigits[] = "0123456789abcdef";
    const auto value = static_cast<uint8_t>(byte);
    return {'0', 'x', kDigits[value >> 4], kDigits[value & 15]};
}

class Comparison {
public:
    explicit Comparison(CopyLane& lane) : on_device_(lane), source_on_device_(lane) {}

    Status compare(const Read& read) {
        for (uint64_t at = 0; at < read.source.bytes; at += DeviceReader::kMostBytes) {
            const uint64_t bytes = std::min(DeviceReader::kMostBytes, read.source.bytes - at);
            std::span<const char> are, wanted;
            SH_TRY(on_device_.read(read.address + at, bytes, &are));
            SH_TRY(read_source(read.source, at, bytes, &wanted));
            const auto [is, should_be] = std::ranges::mismatch(are, wanted);
            if (is == are.end()) continue;
            const uint64_t place = read.offset + at + static_cast<uint64_t>(is - are.begin());
            return Status(SH_ERROR_CHECKSUM, "byte " + std::to_string(place) + " is " + hex(*is) +
                                                 " on the device and " + hex(*should_be) + " in the source");
        }
        return Status();
    }

private:
    Status read_source(const transfer::Source& source, uint64_t at, uint64_t bytes, std::span<const char>* out) {
        if (source.kind == SH_SOURCE_DEVICE)
            return source_on_device_.read(reinterpret_cast<uint64_t>(source.pointer) + at, bytes, out);
        source_.resize(bytes);
        const transfer::ReadRequest request = {&source, at, source_.data(), bytes};
        *out = source_;
        return reader_.read({&request, 1});
    }

    DeviceReader on_device_, source_on_device_;
    transfer::Reader reader_;
    std::vector<char> source_;
};

}  // namespace

Status Readback::order_copies_after(const Block& block, sh_stream stream) {
    BackendDevice& backend = memory_.device;
    CopyLane& lane = movers_.write_back.lane();
    const sh_stream copies = lane.stream();
    if (stream != SH_STREAM_HOST) {
        SH_TRY(views_.check_no_capture(stream));
        SH_TRY(lane.come_after(stream));
    }
    const Unit& unit = memory_.registry.unit(block.unit);
    // The acquire may be on another stream.
    if (unit.load() && unit.load()->issued) SH_TRY(backend.stream_wait_event(copies, unit.load()->done));
    return unit.arrives() ? backend.stream_wait_event(copies, unit.arrives()) : Status();
}

Status Readback::read(sh_block id, sh_stream stream, uint64_t offset, void* buffer, uint64_t bytes, Lock& lock) {
    Block* const block = memory_.registry.find(id);
    if (!block) return gate_.unknown_block(id);
    if (!block->held)
        return Status(SH_ERROR_INVALID_STATE,
                      memory_.registry.name_of(*block) + " cannot be read: no view of it is held. Acquire it first");
    if (offset > block->bytes || bytes > block->bytes - offset)
        return Status(SH_ERROR_INVALID_ARGUMENT, "offset " + std::to_string(offset) + " and bytes " +
                                                     std::to_string(bytes) + " reach beyond the end of " +
                                                     memory_.registry.name_of(*block) + ", which has " +
                                                     std::to_string(block->bytes) + " bytes");
    SH_TRY(order_copies_after(*block, stream));
    const uint64_t address = block->address + offset;
    const Gate::Inside inside(gate_);
    return gate_.note(unlocked(lock, [&]() -> Status {
        SH_TRY(movers_.write_back.lane().copy(address, buffer, bytes));
        return movers_.write_back.lane().synchronize();
    }));
}

Status Readback::can_verify(const Block& block) const {
    const auto refused = [&](sh_status code, const char* why) {
        return Status(code, memory_.registry.name_of(block) + " cannot be verified: " + why);
    };
    if (memory_.device.has(SH_BACKEND_CONTENTLESS)) return refused(SH_ERROR_UNSUPPORTED, "the device has no contents");
    if (block.detail->on_load) return refused(SH_ERROR_UNSUPPORTED, "its on_load may have changed what was loaded");
    if (!block.held) return refused(SH_ERROR_INVALID_STATE, "no view of it is held. Acquire it first");
    if (block.updating()) return refused(SH_ERROR_INVALID_STATE, "its source is being updated");
    const Unit& unit = memory_.registry.unit(block.unit);
    if (unit.stale())
        return refused(SH_ERROR_INVALID_STATE,
                       "it, or a block that shares its pages, was invalidated, and its view has the contents before");
    if (!unit.complete() || unit.load_queued()) return refused(SH_ERROR_INVALID_STATE, "it is not loaded whole yet");
    if (block.dirty() || block.written())
        return refused(SH_ERROR_INVALID_STATE, "it has changes that are not in its source: write them back first");
    return Status();
}

// A view of its own keeps the bytes on the device, and an update waits until the sources are not read any more.
Status Readback::verify(sh_block id, sh_stream stream, Lock& lock) {
    Block* const block = memory_.registry.find(id);
    if (!block) return gate_.unknown_block(id);
    SH_TRY(can_verify(*block));
    Unit& unit = memory_.registry.unit(block->unit);
    std::vector<Read> reads;
    const BlockDetail& detail = *block->detail;
    for (const transfer::Segment& segment : detail.segments) {
        const transfer::Segment& now = detail.has_news ? written_segment(detail, segment) : segment;
        reads.push_back({now.source, unit.address + now.offset, unit.address + now.offset - block->address, now.copy});
    }
    SH_TRY(order_copies_after(*block, stream));
    const std::string name = memory_.registry.name_of(*block);  // from here on, nothing may throw
    const Gate::Inside inside(gate_);
    views_.hold(*block, unit);
    block->detail->readers++;
    Status status = no_throw([&] {
        return unlocked(lock, [&]() -> Status {
            Comparison comparison(movers_.write_back.lane());
            for (const Read& read : reads) SH_TRY(comparison.compare(read));
            return Status();
        });
    });
    block->detail->readers--;
    gate_.notify();
    views_.give(*block);
    const Status ended = views_.end(*block, SH_STREAM_HOST);
    return gate_.note(status.ok() ? ended : status.within(name));
}

}  // namespace stagehand::core
