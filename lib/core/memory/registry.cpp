#include "core/memory/registry.h"

#include <algorithm>

#include "base/log.h"
#include "base/once_more.h"
#include "base/size_text.h"
#include "transfer/host/pinned_memory.h"

namespace stagehand::core {
namespace {

constexpr uint64_t kBlockAlignment = 256;
constexpr uint64_t kSmallPages = 2;   // smaller blocks are packed with their neighbours
constexpr uint64_t kLargestBlock = uint64_t(1) << 46;
constexpr uint64_t kLargestRange = uint64_t(1) << 62;   // of all blocks that are registered together

uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

std::string describe(const sh_block_desc& desc, size_t index) {
    return "block " + std::to_string(index) + (desc.name ? " \"" + std::string(desc.name) + "\"" : "");
}

const sh_segment& segment_at(const sh_block_desc& desc, uint64_t index) {
    const auto* first = reinterpret_cast<const char*>(desc.segments);
    return *reinterpret_cast<const sh_segment*>(first + index * desc.segments[0].struct_size);
}

Status bad(const sh_block_desc& desc, size_t index, const std::string& what) {
    return Status(SH_ERROR_INVALID_ARGUMENT, describe(desc, index) + ": " + what);
}

Status check_segment(const sh_block_desc& desc, size_t index, uint64_t number, const sh_segment& segment) {
    const std::string name = "segment " + std::to_string(number);
    if (segment.offset > desc.bytes || segment.bytes > desc.bytes - segment.offset)
        return bad(desc, index, name + " ends beyond the block's " + exact_size_text(desc.bytes));
    const bool memory = segment.kind == SH_SOURCE_POINTER || segment.kind == SH_SOURCE_MAPPED || segment.kind == SH_SOURCE_DEVICE;
    if (memory && !segment.pointer && segment.bytes) return bad(desc, index, name + " has a NULL pointer");
    if (memory && reinterpret_cast<uint64_t>(segment.pointer) > UINT64_MAX - segment.bytes)
        return bad(desc, index, name + "'s pointer and bytes overflow");
    if (segment.kind == SH_SOURCE_FILE && (segment.file < 0 || segment.file > INT32_MAX))
        return bad(desc, index, name + " has no file descriptor");
    if (segment.kind == SH_SOURCE_FILE && segment.file_offset > uint64_t(INT64_MAX) - segment.bytes)
        return bad(desc, index, name + "'s file_offset and bytes overflow");
    if (segment.kind == SH_SOURCE_FILL && !segment.fill) return bad(desc, index, name + " has no fill callback");
    if (segment.kind < SH_SOURCE_POINTER || segment.kind > SH_SOURCE_DEVICE)
        return bad(desc, index, name + " has the unknown kind " + std::to_string(segment.kind));
    if ((desc.flags & SH_BLOCK_MUTABLE) && segment.kind != SH_SOURCE_POINTER)
        return bad(desc, index, name + " is not SH_SOURCE_POINTER, but the block is mutable");
    return Status();
}

bool is_small(const sh_block_desc& desc, uint64_t page_bytes) {
    return !(desc.flags & SH_BLOCK_UNORDERED) && desc.bytes < kSmallPages * page_bytes;
}

}  // namespace

Registry::Registry(BackendDevice& device, uint64_t page_bytes, uint16_t tag)
    : device_(device), page_bytes_(page_bytes), tag_(tag), plain_(!device.has(SH_BACKEND_FIXED_ADDRESSES)) {}

Registry::~Registry() {
    for (Unit& unit : units())
        if (unit.live) release_unit(unit);
    for (Block& block : blocks())
        if (block.detail) close_sources(*block.detail);
}

Status Registry::check(std::span<const sh_block_desc* const> descs) const {
    constexpr uint32_t known = SH_BLOCK_MUTABLE | SH_BLOCK_WHOLE | SH_BLOCK_UNORDERED | SH_BLOCK_PIN;
    std::vector<std::pair<uint64_t, uint64_t>> extents;
    const uint64_t largest = std::min(kLargestBlock, page_bytes_ * UINT32_MAX);   // a unit counts its pages in 32 bits
    uint64_t total = 0;
    for (size_t i = 0; i < descs.size(); i++) {
        const sh_block_desc& desc = *descs[i];
        if (desc.bytes == 0) return bad(desc, i, "bytes is 0");
        if (desc.bytes > largest)
            return bad(desc, i, "bytes is " + exact_size_text(desc.bytes) + ", and with pages of " + exact_size_text(page_bytes_) +
                                    " a block has at most " + exact_size_text(largest));
        total += round_up(desc.bytes, page_bytes_);
        if (total > kLargestRange) return bad(desc, i, "bytes: with those before it, it is beyond what can be addressed");
        if (desc.flags & ~known) return bad(desc, i, "flags has unknown bits");
        if (desc.segment_count && !desc.segments) return bad(desc, i, "segments is NULL");
        extents.clear();
        for (uint64_t k = 0; k < desc.segment_count; k++) {
            const sh_segment& segment = segment_at(desc, k);
            SH_TRY(check_segment(desc, i, k, segment));
            if (segment.bytes) extents.emplace_back(segment.offset, segment.bytes);
        }
        std::sort(extents.begin(), extents.end());
        for (size_t k = 1; k < extents.size(); k++)
            if (extents[k - 1].first + extents[k - 1].second > extents[k].first)
                return bad(desc, i, "segments overlap at offset " + std::to_string(extents[k].first));
    }
    if (descs.size() > blocks_.capacity() - blocks_.size())
        return Status(SH_ERROR_INVALID_ARGUMENT, "count: a runtime has at most " + std::to_string(blocks_.capacity()) + " blocks");
    return Status();
}

// Appends records of blocks and units. Addresses are offsets in the range until it is reserved.
void Registry::pack(std::span<const sh_block_desc* const> descs, uint64_t pack_pages, uint64_t* out_bytes) {
    uint64_t end = 0;   // of the range
    bool open = false;  // the last unit takes more small blocks
    generation_++;
    for (const sh_block_desc* desc : descs) {
        const bool small = is_small(*desc, page_bytes_);
        const uint64_t offset = open ? round_up(units_.back().bytes, kBlockAlignment) : 0;
        if (!small || !open || offset + desc->bytes > pack_pages * page_bytes_) {
            end = round_up(end, page_bytes_);
            Unit& unit = units_.emplace_back();
            unit.live = true;
            hindered_ += !unit.ready();
            unit.address = plain_ ? 0 : end;
            unit.whole = plain_;
            unit.range = static_cast<uint32_t>(ranges_.size());
            unit.first_block = static_cast<uint32_t>(blocks_.size());
            unit.unordered = desc->flags & SH_BLOCK_UNORDERED;
            open = small;
        }
        Unit& unit = units_.back();
        const uint64_t begin = unit.block_count ? round_up(unit.bytes, kBlockAlignment) : 0;
        Block& block = blocks_.emplace_back();
        block.id = (uint64_t(tag_) << 48) | (uint64_t(generation_) << 32) | (blocks_.size() - 1);
        block.address = unit.address + begin;
        block.bytes = desc->bytes;
        block.flags = desc->flags;
        block.unit = static_cast<uint32_t>(units_.size() - 1);
        unit.block_count++;
        unit.bytes = begin + desc->bytes;
        unit.pages = static_cast<uint32_t>((unit.bytes + page_bytes_ - 1) / page_bytes_);
        unit.whole |= (desc->flags & SH_BLOCK_WHOLE) != 0;
        end = plain_ ? 0 : unit.address + unit.bytes;
    }
    *out_bytes = round_up(end, page_bytes_);
}

Status Registry::open_sources(std::span<const sh_block_desc* const> descs, size_t first_block) {
    const bool contentless = device_.has(SH_BACKEND_CONTENTLESS);
    for (size_t i = 0; i < descs.size(); i++) {
        const sh_block_desc& desc = *descs[i];
        Block& block = blocks_[first_block + i];
        block.detail = std::make_unique<BlockDetail>();
        BlockDetail& detail = *block.detail;
        detail.on_load = desc.on_load;
        detail.user_data = desc.user_data;
        if (desc.name) detail.name = desc.name;
        detail.segments.reserve(desc.segment_count);
        for (uint64_t k = 0; k < desc.segment_count; k++) {
            const sh_segment& from = segment_at(desc, k);
            if (!from.bytes) continue;
            Segment& segment = detail.segments.emplace_back();
            segment.offset = block.address - units_[block.unit].address + from.offset;
            segment.bytes = from.bytes;
            if (contentless) {
                segment.direct = true;
                segment.source.pointer = from.pointer;
                continue;
            }
            if (Status status = transfer::open_source(from, &segment.source); !status.ok()) {
                detail.segments.pop_back();
                return status.within(describe(desc, i) + ", segment " + std::to_string(k));
            }
            if (from.kind == SH_SOURCE_DEVICE) SH_TRY(reach(segment.source).within(describe(desc, i) + ", segment " + std::to_string(k)));
            segment.direct = from.kind == SH_SOURCE_DEVICE;
            if (from.kind != SH_SOURCE_POINTER) continue;
            if (desc.flags & SH_BLOCK_PIN) {
                if (Status status = transfer::pin_foreign(device_, from.pointer, from.bytes, &segment.pinned_piece); !status.ok())
                    log_line(SH_LOG_WARNING, "%s: not pinned: %s", describe(desc, i).c_str(), status.text());
            }
            uint32_t pinned = 0;
            SH_TRY(device_.host_is_pinned(from.pointer, from.bytes, &pinned));
            segment.direct = pinned;
        }
        std::sort(detail.segments.begin(), detail.segments.end(),
                  [](const Segment& a, const Segment& b) { return a.offset < b.offset; });
        SH_TRY(join_segments(detail));
    }
    return Status();
}

Status Registry::reach(const transfer::Source& source) {
    uint32_t reachable = 0;
    if (!device_.reaches_memory()) return Status(SH_ERROR_UNSUPPORTED, "kind: this backend copies from no device memory");
    SH_TRY(device_.memory_is_reachable(reinterpret_cast<uint64_t>(source.pointer), source.bytes, &reachable));
    return reachable ? Status() : Status(SH_ERROR_INVALID_ARGUMENT, "pointer is not device memory that this device can copy from");
}

// Segments whose pinned memory lies in one piece, as a file's tensors do, are copied by one command.
Status Registry::join_segments(BlockDetail& detail) {
    for (size_t i = 1; i < detail.segments.size(); i++) {
        const Segment& before = detail.segments[i - 1];
        Segment& segment = detail.segments[i];
        char* const start = static_cast<char*>(before.source.pointer);
        if (!before.direct || !segment.direct || before.pinned_piece || segment.pinned_piece) continue;
        if (before.source.kind == SH_SOURCE_DEVICE || segment.source.kind == SH_SOURCE_DEVICE) continue;
        if (start + before.bytes != segment.source.pointer || before.offset + before.bytes != segment.offset) continue;
        uint32_t pinned = device_.has(SH_BACKEND_CONTENTLESS);
        if (!pinned) SH_TRY(device_.host_is_pinned(start, before.bytes + segment.bytes, &pinned));
        segment.joined = pinned;
    }
    return Status();
}

Status Registry::add(std::span<const sh_block_desc* const> descs, uint64_t pack_pages, sh_block* out_ids) {
    SH_TRY(check(descs));
    if (descs.empty()) return Status();
    const size_t first_block = blocks_.size(), first_unit = units_.size();
    // Freed records are not reused before the generation comes round, so ids stay unique for 65,535 registrations at one place.
    uint64_t bytes = 0;
    pack(descs, pack_pages, &bytes);
    Range range;
    range.bytes = bytes;
    range.units = static_cast<uint32_t>(units_.size() - first_unit);
    Status status = plain_ ? Status() : device_.range_reserve(bytes, page_bytes_, &range.address);
    const bool reserved = status.ok() && !plain_;
    if (status.ok()) status = open_sources(descs, first_block);
    if (!status.ok()) {
        for (size_t i = first_block; i < blocks_.size(); i++)
            if (blocks_[i].detail) close_sources(*blocks_[i].detail);
        for (size_t i = first_unit; i < units_.size(); i++) hindered_ -= !units_[i].ready();
        blocks_.shrink(first_block);
        units_.shrink(first_unit);
        if (reserved)
            if (Status freed = once_more([&] { return device_.range_free(range.address, range.bytes); }); !freed.ok())
                log_line(SH_LOG_WARNING, "addresses are lost: %s", freed.text());
        return status;
    }
    ranges_.push_back(range);
    for (size_t i = first_unit; i < units_.size(); i++) {
        units_[i].address += range.address;
        const auto& segments = blocks_[units_[i].first_block].detail->segments;
        units_[i].straight = !plain_ && units_[i].block_count == 1 && !segments.empty() && segments[0].direct &&
                             std::all_of(segments.begin() + 1, segments.end(), [](const Segment& segment) { return segment.joined; });
    }
    for (size_t i = first_block; i < blocks_.size(); i++) {
        blocks_[i].address += range.address;
        model_bytes_ += blocks_[i].bytes;
        out_ids[i - first_block] = blocks_[i].id;
    }
    live_blocks_ += descs.size();
    return Status();
}

void Registry::close_sources(BlockDetail& detail) {
    for (Segment& segment : detail.segments) {
        if (segment.pinned_piece) transfer::unpin_foreign(device_, segment.source.pointer, segment.bytes, segment.pinned_piece);
        transfer::close_source(&segment.source);
    }
    detail.segments.clear();
}

void Registry::release_unit(Unit& unit) {
    unit.live = false;
    hindered_ -= !unit.ready();
    Range& range = ranges_[unit.range];
    if (--range.units || plain_) return;
    if (Status status = once_more([&] { return device_.range_free(range.address, range.bytes); }); !status.ok())
        log_line(SH_LOG_WARNING, "addresses are lost: %s", status.text());
}

void Registry::remove(std::span<const sh_block> ids) {
    for (const sh_block id : ids) {
        Block* block = find(id);
        if (!block) continue;
        close_sources(*block->detail);
        block->detail.reset();
        block->id = 0;
        model_bytes_ -= block->bytes;
        live_blocks_--;
        Unit& unit = units_[block->unit];
        const auto blocks = blocks_of(unit);
        if (std::none_of(blocks.begin(), blocks.end(), [](const Block& b) { return b.id != 0; })) release_unit(unit);
    }
}

void Registry::set_address(Unit& unit, uint64_t address) {
    for (Block& block : blocks_of(unit)) block.address += address - unit.address;
    unit.address = address;
}

std::string Registry::name_of(const Block& block) const {
    const std::string place = "block " + std::to_string(&block - blocks_.data());
    return block.detail && !block.detail->name.empty() ? "block \"" + block.detail->name + "\"" : place;
}

std::string Registry::name_of(const Unit& unit) const {
    for (uint32_t i = unit.first_block; i < unit.first_block + unit.block_count; i++)
        if (blocks_[i].id)
            return name_of(blocks_[i]) + (unit.block_count > 1 ? " and others that are loaded with it" : "");
    return "a block";
}

}  // namespace stagehand::core
