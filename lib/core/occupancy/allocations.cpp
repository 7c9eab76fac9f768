#include "core/occupancy/allocations.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/once_more.h"
#include "base/size_text.h"

namespace stagehand::core {
namespace {

constexpr uint64_t kLeastChunk = uint64_t(2) << 20;
constexpr uint64_t kLargestChunk = uint64_t(512) << 20;
constexpr uint64_t kSharers = 8;  // of a chunk at least, so that at most an eighth of it suits none of them
constexpr uint64_t kAlignment = 512;
constexpr uint64_t kLargestAllocation = uint64_t(1) << 56;  // sums of more overflow

uint64_t whole(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// An element that can be put into the map without memory.
template <class Map>
typename Map::node_type spare_node() {
    Map one;
    one.try_emplace(0);
    return one.extract(one.begin());
}

// Whether the memory counts for the size of chunks. Larger allocations never share.
bool counts(const Extent& extent) { return extent.bytes() <= kLargestChunk / kSharers || extent.shared; }

Alike& alike_of(Tag& tag, Keeping keeping) {
    auto& alike = tag.alike[keeping.way_out.to_file ? 3 : static_cast<size_t>(keeping.way_out.leaving)];
    return alike[keeping.constant][keeping.format];
}

}  // namespace

Allocations::~Allocations() {
    BackendDevice& backend = device_.backend();
    const bool used = !extents_.empty() && backend.has_device_synchronize();
    const Status ended = used ? once_more([&] { return backend.device_synchronize(); }) : Status();
    retry_retired();
    for (auto& [address, extent] : extents_) retired_.push_back(std::move(extent));  // there is room
    if (ended.ok()) retry_retired();
    if (!retired_.empty())
        log_line(SH_LOG_WARNING, "closing the device did not free all memory of sh_alloc(): %s", ended.text());
    // Work that may be under way goes on using the memory.
    if (!ended.ok() || !passage_.settle().ok())
        for (const auto& extent : retired_) extent->host().abandon();
    settle();
    device_.note_pinned_contents(0);
}

// Handles are no smaller than this, so that their number stays bounded.
uint64_t Allocations::least_chunk() const { return std::max(kLeastChunk, device_.backend().info().granularity_bytes); }

// The driver takes as long for a small handle as for a large one. Chunks grow with the memory of those that may share
// them, so that there are few, and at most a fifth is not used yet.
uint64_t Allocations::chunk_for(const Alike& alike) const {
    return std::clamp(std::bit_floor(alike.bytes / 4 + 1), least_chunk(), std::max(least_chunk(), kLargestChunk));
}

Status Allocations::alloc(Tag& tag, uint64_t bytes, Keeping keeping, uint64_t* out_address) {
    if (bytes > kLargestAllocation)
        return Status(SH_ERROR_OUT_OF_DEVICE_MEMORY, exact_size_text(bytes) + " are more than any device has");
    auto node = spare_node<std::map<uint64_t, uint64_t>>();
    uint64_t address = 0;
    const bool shares = bytes < least_chunk() || bytes <= chunk_for(alike_of(tag, keeping)) / kSharers;
    if (shares)
        SH_TRY(alloc_shared(tag, bytes, keeping, &address));
    else
        SH_TRY(alloc_alone(tag, bytes, keeping, &address));
    Extent& extent = extent_of(address);
    extent.allocations++;
    extent.note_new_contents();
    node.key() = address;
    node.mapped() = bytes;
    allocations_.insert(std::move(node));
    tags_.note_allocation(tag, bytes, true);
    *out_address = address;
    return Status();
}

Status Allocations::alloc_alone(Tag& tag, uint64_t bytes, Keeping keeping, uint64_t* out_address) {
    Extent* extent = nullptr;
    SH_TRY(add_extent(tag, whole(bytes, device_.backend().info().granularity_bytes), false, keeping, &extent));
    *out_address = extent->address();
    return Status();
}

// Without room for a chunk, the allocation has an extent of its own. If there is no room for that either, the budget is
// asked only once: every question makes runtimes look for memory that they could give up.
Status Allocations::alloc_shared(Tag& tag, uint64_t bytes, Keeping keeping, uint64_t* out_address) {
    FreeSpace& free = alike_of(tag, keeping).free;
    const uint64_t taken = whole(bytes, kAlignment);
    *out_address = free.take(taken);
    if (*out_address) return Status();
    const uint64_t least = whole(bytes, device_.backend().info().granularity_bytes);
    SH_TRY(claim(least));
    if (!add_chunk(tag, std::max(least, least_chunk()), keeping).ok())
        return alloc_alone(tag, bytes, keeping, out_address);
    *out_address = free.take(taken);
    return Status();
}

Status Allocations::add_chunk(Tag& tag, uint64_t least, Keeping keeping) {
    Alike& alike = alike_of(tag, keeping);
    const uint64_t wanted = chunk_for(alike);
    Extent* extent = nullptr;
    Status status = add_extent(tag, wanted, true, keeping, &extent);
    if (!status.ok() && wanted > least) status = add_extent(tag, least, true, keeping, &extent);
    SH_TRY(status);
    const Chunk chunk{extent->address(), extent->bytes()};
    const Status given = no_throw([&] { return alike.free.give(chunk, chunk.address, chunk.bytes), Status(); });
    if (!given.ok()) remove_extent(*extent);
    return given;
}

Status Allocations::add_extent(Tag& tag, uint64_t bytes, bool shared, Keeping keeping, Extent** out) {
    auto node = spare_node<Extents>();
    node.mapped() = std::make_unique<Extent>(device_.backend(), &totals_, bytes, keeping);
    retired_.reserve(retired_.size() + extents_.size() + 1);  // so that retire() cannot fail
    SH_TRY(claim(bytes));
    if (Status opened = no_throw([&] { return node.mapped()->open(); }); !opened.ok()) {
        retire(std::move(node.mapped()));
        return opened;
    }
    Extent& extent = *node.mapped();
    extent.tag = &tag;
    extent.shared = shared;
    if (counts(extent)) alike_of(tag, keeping).bytes += bytes;
    node.key() = extent.address();
    extents_.insert(std::move(node));
    tags_.note_opened(extent);
    *out = &extent;
    return Status();
}

Extent& Allocations::extent_of(uint64_t address) const { return *std::prev(extents_.upper_bound(address))->second; }

Status Allocations::free(uint64_t address) {
    retry_retired();
    const auto found = allocations_.find(address);
    if (found == allocations_.end())
        return Status(SH_ERROR_INVALID_ARGUMENT,
                      "no allocation of sh_alloc() begins at address " + std::to_string(address));
    Extent& extent = extent_of(address);
    Tag& tag = *extent.tag;
    BackendDevice& backend = device_.backend();
    if (tag.info.state == SH_OCCUPANCY_RUNNING && backend.has_device_synchronize())
        SH_TRY(backend.device_synchronize());
    const uint64_t bytes = found->second;
    FreeSpace& free = alike_of(tag, extent.keeping()).free;
    const Chunk chunk{extent.address(), extent.bytes()};
    if (extent.shared) free.give(chunk, address, whole(bytes, kAlignment));
    allocations_.erase(found);
    tags_.note_allocation(tag, bytes, false);
    if (--extent.allocations) return Status();
    if (extent.shared) free.remove(chunk);
    remove_extent(extent);
    return Status();
}

Status Allocations::find(uint64_t address, uint64_t bytes, const Extent** out) const {
    const auto next = allocations_.upper_bound(address);
    const auto found = next == allocations_.begin() ? allocations_.end() : std::prev(next);
    const uint64_t offset = found == allocations_.end() ? 0 : address - found->first;
    if (found == allocations_.end() || offset >= found->second || bytes > found->second - offset)
        return Status(SH_ERROR_INVALID_ARGUMENT, std::to_string(bytes) + " bytes at address " +
                                                     std::to_string(address) +
                                                     " do not lie in an allocation of sh_alloc()");
    *out = &extent_of(address);
    return Status();
}

void Allocations::remove_extent(Extent& extent) noexcept {
    Extent* const one[] = {&extent};  // a vector could not be allocated
    memory_.stop_preparing(one);
    if (counts(extent)) alike_of(*extent.tag, extent.keeping()).bytes -= extent.bytes();
    tags_.note_removed(extent);
    retire(std::move(extents_.extract(extent.address()).mapped()));
    memory_.go_on_preparing();
}

// Gives an extent back. An extent that the driver does not take is kept, and counted, until the driver does.
void Allocations::retire(std::unique_ptr<Extent> extent) noexcept {
    if (!let_go(*extent)) retired_.push_back(std::move(extent));
    settle();
}

bool Allocations::let_go(Extent& extent) noexcept {
    Status closed = passage_.settle();
    if (closed.ok()) closed = extent.close();
    if (!closed.ok()) log_line(SH_LOG_WARNING, "memory of sh_alloc() could not be given back: %s", closed.text());
    return closed.ok();
}

void Allocations::retry_retired() noexcept {
    if (retired_.empty()) return;
    std::erase_if(retired_, [&](const std::unique_ptr<Extent>& extent) { return let_go(*extent); });
    settle();
}

std::vector<Extent*> Allocations::extents_of(const std::vector<Tag*>& tags) const {
    std::vector<Extent*> result;
    for (const Tag* const tag : tags)
        for (const auto& [address, extent] : extents_)
            if (extent->tag == tag) result.push_back(extent.get());
    return result;
}

void Allocations::find_unused(std::vector<AddressRange>* ranges) const {
    for (const auto& [name, tag] : tags_.all())
        for (const auto& of_fate : tag.alike)
            for (const auto& of_flags : of_fate)
                for (const Alike& alike : of_flags) alike.free.add_to(ranges);
    std::sort(ranges->begin(), ranges->end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    size_t kept = 0;
    for (const AddressRange range : *ranges) {
        if (kept && (*ranges)[kept - 1].end >= range.begin)
            (*ranges)[kept - 1].end = std::max((*ranges)[kept - 1].end, range.end);
        else
            (*ranges)[kept++] = range;
    }
    ranges->resize(kept);
}

}  // namespace stagehand::core
