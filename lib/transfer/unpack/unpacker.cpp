#include "transfer/unpack/unpacker.h"

#include <algorithm>

#include "backend/timed_span.h"
#include "base/no_throw.h"
#include "base/once_more.h"
#include "codec/chunk.h"
#include "transfer/host/pinned_memory.h"

namespace stagehand::transfer {
namespace {

using codec::FloatFormat;

constexpr uint64_t kSlotAlignment = 256;
constexpr int kUnpackRepeats = 3, kCallsAtOnce = 8;

uint64_t slot_aligned(uint64_t bytes) { return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment; }

uint64_t largest_chunk() { return slot_aligned(codec::largest_chunk_bytes(FloatFormat::f32, codec::kChunkElements)); }
uint64_t scratch_bytes() { return uint64_t(codec::kChunkElements) * codec::fields_of(FloatFormat::f32).bytes(); }

sh_backend_packed description(FloatFormat format, uint64_t from, uint64_t to) {
    sh_backend_packed packed = {};
    packed.struct_size = sizeof packed;
    packed.format = static_cast<uint32_t>(format);
    packed.from = from;
    packed.to = to;
    return packed;
}

}  // namespace

Unpacker::~Unpacker() { (void)close().ok(); }

uint64_t Unpacker::least_bytes() { return kSlots * largest_chunk() + scratch_bytes(); }

// Each way fills slots of its own, which are large enough for relays.
uint32_t Unpacker::slots_in(uint64_t bytes) const {
    const uint64_t ways = carrier_.ways();
    const uint64_t least = std::max(largest_chunk(), carrier_.least_piece());
    const uint64_t room = (bytes - scratch_bytes()) / least;
    return static_cast<uint32_t>(std::max<uint64_t>(kSlots, std::min({ways * kSlots, room, uint64_t(kMostSlots)})));
}

uint64_t Unpacker::slot_bytes_in(uint64_t bytes) const {
    if (bytes < least_bytes()) return 0;
    return (bytes - scratch_bytes()) / slots_in(bytes) / kSlotAlignment * kSlotAlignment;
}

Status Unpacker::open(Lanes& lanes, uint64_t address, uint64_t bytes) {
    const Status status = make(lanes, address, bytes);
    if (!status.ok()) forget();
    return status;
}

// No event of a slot may be waited for that the capture has not recorded.
Status Unpacker::open_to_record(Lanes& lanes, uint64_t address, uint64_t bytes) {
    SH_TRY(open(lanes, address, bytes));
    records_ = true;
    broken_off_ = lane_.stream();
    return Status();
}

Status Unpacker::end_record(sh_stream stream) { return joined_ ? lead(stream, slots_[0].filled) : Status(); }

Status Unpacker::follow(sh_stream stream, sh_backend_event event) {
    std::lock_guard lock(mutex_);
    for (const sh_stream own : {lane_.stream(), stream}) SH_TRY(device_.stream_wait_event(own, event));
    return free_all_after(stream);  // relays wait for nothing else
}

// All slots become free after what is queued on the stream so far.
Status Unpacker::free_all_after(sh_stream stream) {
    for (uint32_t i = 0; i < slot_count_; i++) SH_TRY(device_.event_record(slots_[i].free, stream));
    return Status();
}

Status Unpacker::lead(sh_stream stream, sh_backend_event event) {
    SH_TRY(device_.event_record(event, lane_.stream()));
    return device_.stream_wait_event(stream, event);
}

Status Unpacker::make(Lanes& lanes, uint64_t address, uint64_t bytes) {
    slot_count_ = slots_in(bytes);
    slot_bytes_ = slot_bytes_in(bytes);
    scratch_ = address + slot_count_ * slot_bytes_;
    next_ = 0;
    records_ = joined_ = false;
    broken_off_ = 0;
    SH_TRY(lanes.lend(Direction::to_device, &lane_));
    for (uint32_t i = 0; i < slot_count_; i++) {
        slots_[i].address = address + i * slot_bytes_;
        SH_TRY(device_.event_create(false, &slots_[i].filled));
        SH_TRY(device_.event_create(false, &slots_[i].free));
    }
    return Status();
}

// Unpacks a slot of equal chunks into the other slots.
Status Unpacker::measure(double* bytes_per_ns) {
    constexpr FloatFormat format = FloatFormat::bf16;
    const uint64_t contents = uint64_t(codec::kChunkElements) * codec::fields_of(format).bytes();
    std::vector<uint8_t> weights(contents);
    for (uint64_t i = 0; i < contents; i += 2) {  // exponents of weights, and any mantissa
        weights[i] = static_cast<uint8_t>(i * 37 >> 3);
        weights[i + 1] = static_cast<uint8_t>(0x3c | (i >> 9 & 1) | (i >> 2 & 0x80));
    }
    PinnedMemory packed;
    SH_TRY(PinnedMemory::allocate(device_, largest_chunk(), &packed));
    const uint64_t bytes =
        codec::pack_chunk(format, weights.data(), codec::kChunkElements, static_cast<uint8_t*>(packed.data()));
    const uint64_t chunks =
        std::min({slot_bytes_ / bytes, (slot_count_ - 1) * slot_bytes_ / contents, uint64_t(SH_BACKEND_UNPACK_CHUNKS)});
    sh_backend_packed work = description(format, slots_[0].address, slots_[1].address);
    work.chunks = static_cast<uint32_t>(chunks);
    work.elements = chunks * codec::kChunkElements;
    for (uint32_t i = 0; i <= chunks; i++) work.places[i] = static_cast<uint32_t>(i * bytes / codec::kTileAlignment);
    TimedSpan span(device_);
    int64_t best = 0;
    const sh_stream stream = lane_.stream();
    const auto time = [&](int64_t* ns) {
        SH_TRY(span.begin(stream));
        for (int i = 0; i < kCallsAtOnce; i++) SH_TRY(device_.unpack(stream, work));
        SH_TRY(span.end(stream));
        SH_TRY(span.wait());
        return span.read(ns);
    };
    const auto measured = [&] {
        for (uint64_t i = 0; i < chunks; i++)
            SH_TRY(device_.copy_to_device(stream, work.from + i * bytes, packed.data(), bytes));
        for (int i = 0; i <= kUnpackRepeats; i++) {  // the first one loads the program
            int64_t ns = 0;
            SH_TRY(time(&ns));
            if (i && ns > 0 && (!best || ns < best)) best = ns;
        }
        return Status();
    };
    Status status = measured();
    const Status ended = once_more([&] { return device_.stream_synchronize(stream); });
    if (!ended.ok()) packed.abandon();
    if (status.ok()) status = ended;
    SH_TRY(status);
    *bytes_per_ns = best ? static_cast<double>(kCallsAtOnce * chunks * contents) / static_cast<double>(best) : 0;
    return Status();
}

void Unpacker::forget() {
    for (Slot& slot : slots_) {
        for (sh_backend_event* event : {&slot.filled, &slot.free})
            if (*event) (void)once_more([&] { return device_.event_destroy(*event); }).ok();
        slot = {};
    }
    lane_ = Lane();
}

Status Unpacker::synchronize_all() {
    SH_TRY(carrier_.synchronize());
    SH_TRY(once_more([&] { return device_.stream_synchronize(lane_.stream()); }));
    const sh_stream stream = unpacks_on_;
    return stream ? once_more([&] { return device_.stream_synchronize(stream); }) : Status();
}

Status Unpacker::close() {
    if (!is_open()) return Status();
    if (!records_) SH_TRY(synchronize_all());
    unpacks_on_ = 0;
    forget();
    return Status();
}

Status Unpacker::synchronize() {
    const sh_stream stream = broken_off_;
    return stream ? device_.stream_synchronize(stream) : Status();
}

// After a failure, the event of a slot may not stand for the work that uses the slot. So the host waits for all of it.
// A capture only has to know that they are free, and the copies' stream joins it.
Status Unpacker::recover(sh_stream stream) {
    if (records_) {
        if (joined_) SH_TRY(lead(stream, slots_[0].filled));  // relays do not wait for the lane
        SH_TRY(free_all_after(stream));
        SH_TRY(device_.stream_wait_event(lane_.stream(), slots_[0].free));
        joined_ = true;
    } else {
        SH_TRY(carrier_.synchronize());
        SH_TRY(device_.stream_synchronize(lane_.stream()));
        SH_TRY(device_.stream_synchronize(stream));
    }
    broken_off_ = 0;
    return Status();
}

// A file has no address, and is only unpacked so on a device without contents.
Unpacker::Chunks Unpacker::pinned_chunks(const Batch& batch) {
    const uint64_t piece = batch.segment->pinned_piece;
    const auto begin = reinterpret_cast<uint64_t>(batch.segment->source.pointer) + batch.begin();
    return {reinterpret_cast<const void*>(begin), piece, piece ? piece - batch.begin() % piece : 0};
}

// Batches of which nothing is unpacked, each of neighbours on both sides.
Status Unpacker::bring_kept(sh_stream stream, const Segment& segment, Issued* out) {
    const KeptChunks& kept = *segment.kept;
    if (!kept.any_missing()) return Status();  // as a rule
    const auto is_missing = [&](uint64_t chunk) { return kept.address_of(chunk) && !kept.is_there(chunk); };
    for (uint64_t chunk = kept.range().begin; chunk < kept.range().end;) {
        Batch batch;
        batch.segment = &segment;
        batch.chunk = chunk;
        batch.kept_at = kept.address_of(chunk);
        while (chunk < kept.range().end && is_missing(chunk) &&
               kept.address_of(chunk) == batch.kept_at + batch.bytes()) {
            batch.chunks++;
            chunk++;
        }
        if (!batch.chunks) {
            chunk++;
            continue;
        }
        WaitSet waited;
        sh_stream copies = SH_STREAM_HOST;
        SH_TRY(issue(stream, {}, batches_, batch, pinned_chunks(batch), {}, &waited, out, &copies));
    }
    return Status();
}

Status Unpacker::issue(sh_stream stream, std::span<const PackedExtent> extents,
                       std::span<const sh_backend_event> events, WaitSet* waited, Issued* out) {
    if (extents.empty()) return Status();
    cut_batches(extents, slot_bytes_, &batches_);
    for (const Batch& batch : batches_.list) {
        const Chunks chunks = batch.is_there ? Chunks() : pinned_chunks(batch);
        sh_stream copies = SH_STREAM_HOST;
        SH_TRY(issue(stream, extents, batches_, batch, chunks, events, waited, out, &copies));
    }
    return Status();
}

Status Unpacker::issue(sh_stream stream, std::span<const PackedExtent> extents, const Batches& batches,
                       const Batch& batch, const Chunks& chunks, std::span<const sh_backend_event> events,
                       WaitSet* waited, Issued* out, sh_stream* out_copies) {
    std::lock_guard lock(mutex_);
    unpacks_on_ = stream;
    *out_copies = lane_.stream();
    if (broken_off_) SH_TRY(recover(stream));
    for (uint32_t i = 0; i < batch.extents; i++) {
        const Command waits = {.waits = extents[batches.by_place[batch.first_extent + i]].waits};
        SH_TRY(transfer::issue(device_, stream, {&waits, 1}, events, waited, out));
    }
    const Status status = no_throw([&] { return queue(stream, batches, batch, chunks, out, out_copies); });
    if (!status.ok()) broken_off_ = lane_.stream();
    return status;
}

Status Unpacker::queue(sh_stream stream, const Batches& batches, const Batch& batch, const Chunks& chunks, Issued* out,
                       sh_stream* out_copies) {
    if (batch.is_there || (records_ && batch.kept_at)) return unpack(stream, batches, batch, batch.kept_at);
    const Slot& slot = slots_[next_++ % slot_count_];
    const uint64_t packed_at = batch.kept_at ? batch.kept_at : slot.address;
    SH_TRY(copy(batch, chunks, slot, packed_at, out, out_copies));
    SH_TRY(device_.stream_wait_event(stream, slot.filled));
    SH_TRY(unpack(stream, batches, batch, packed_at));
    SH_TRY(device_.event_record(slot.free, stream));
    for (uint64_t i = 0; batch.kept_at && i < batch.chunks; i++) batch.segment->kept->set_there(batch.chunk + i);
    return Status();
}

Status Unpacker::unpack(sh_stream stream, const Batches& batches, const Batch& batch, uint64_t packed_at) {
    const std::span parts = std::span(batches.unpackings).subspan(batch.first_unpacking, batch.unpackings);
    for (const Unpacking& part : parts) SH_TRY(unpack(stream, batch, part, packed_at));
    return Status();
}

// No copy may span two pieces of memory that were pinned one by one.
Status Unpacker::copy(const Batch& batch, const Chunks& chunks, const Slot& slot, uint64_t to, Issued* out,
                      sh_stream* out_copies) {
    const uint64_t bytes = batch.bytes();
    uint64_t next = chunks.pinned_piece ? chunks.to_border : bytes;
    commands_.clear();
    for (uint64_t done = 0; done < bytes; next += chunks.pinned_piece) {
        const uint64_t count = std::min(bytes, next) - done;
        const auto from = reinterpret_cast<uint64_t>(chunks.from) + done;
        commands_.push_back({Command::Kind::to_device, false, to + done, from, count, {0, 1}});
        done += count;
    }
    WaitSet waited;
    waited.clear(1);
    *out_copies = lane_.stream();
    SH_TRY(carrier_.carry(0, out_copies, {commands_, {&slot.free, 1}, &waited, out, nullptr, true}));
    return device_.event_record(slot.filled, *out_copies);
}

Status Unpacker::unpack(sh_stream stream, const Batch& batch, const Unpacking& part, uint64_t packed_at) {
    const codec::FrameIndex& index = *batch.segment->source.packed;
    const uint64_t from = packed_at + (index.begin_of(part.chunk) - batch.begin());
    sh_backend_packed work = description(index.format(), from, part.through_scratch ? scratch_ : part.device);
    work.chunks = part.chunks;
    for (uint32_t i = 0; i < part.chunks; i++) work.elements += index.elements_of(part.chunk + i);
    for (uint32_t i = 0; i <= part.chunks; i++)
        work.places[i] = static_cast<uint32_t>((index.begin_of(part.chunk + i) - index.begin_of(part.chunk)) /
                                               codec::kTileAlignment);
    SH_TRY(device_.unpack(stream, work));
    if (!part.through_scratch) return Status();
    return device_.copy_on_device(stream, part.device, scratch_ + part.skip, part.bytes);
}

}  // namespace stagehand::transfer
