// Allocations, figures, and the end of a device. Pause and resume are in occupancy_cycle.cpp.
#include "core/occupancy/occupancy.h"

#include <algorithm>
#include <bit>
#include <cstring>
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

Status unknown_tag(const std::string& name) {
    return Status(SH_ERROR_NOT_FOUND, "there is no tag \"" + name + "\" on the device");
}

void add(const sh_occupancy_info& from, sh_occupancy_info* to) {
    to->allocations += from.allocations;
    to->bytes += from.bytes;
    to->device_bytes += from.device_bytes;
    to->staged_bytes += from.staged_bytes;
    to->host_bytes += from.host_bytes;
    to->pinned_bytes += from.pinned_bytes;
    to->cycles += from.cycles;
    to->file_bytes += from.file_bytes;
}

sh_occupancy_info sum_of(const std::vector<sh_occupancy_info>& all) {
    auto sum = sh_sized<sh_occupancy_info>();
    if (!all.empty()) sum.state = all.front().state;
    for (const sh_occupancy_info& info : all) {
        if (sum.state != info.state) sum.state = SH_OCCUPANCY_MIXED;
        add(info, &sum);
    }
    return sum;
}

}  // namespace

Occupancy::Occupancy(std::shared_ptr<Device> device)
    : device_(std::move(device)),
      accounts_(*device_),
      passage_(*device_, [this](Extent& extent, uint64_t bytes) { note_arrived(extent, bytes); }),
      runtimes_(device_->pausables()),
      fill_(device_->backend()) {}

Occupancy::~Occupancy() {
    fill_.stop();
    BackendDevice& backend = device_->backend();
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
    accounts_.settle(totals_.held_bytes);
    device_->note_pinned_contents(0);
}

// --- Turns ---

Status Occupancy::Turn::take(Occupancy& of, bool no_wait) {
    if (of.worker_.load(std::memory_order_relaxed) == std::this_thread::get_id())
        return Status(SH_ERROR_INVALID_STATE, "a callback of a call of occupancy.h must not make another one");
    if (!no_wait) {
        of.working_.lock();
    } else if (!of.working_.try_lock()) {
        return Status(
            SH_ERROR_BUSY,
            "another call of occupancy.h runs on the device: try again, or call without SH_OCCUPANCY_NO_WAIT");
    }
    of_ = &of;
    of.worker_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    return Status();
}

Occupancy::Turn::~Turn() {
    if (!of_) return;
    of_->worker_.store({}, std::memory_order_relaxed);
    of_->working_.unlock();
}

// --- Allocations ---

// Handles are no smaller than this, so that their number stays bounded.
uint64_t Occupancy::least_chunk() const { return std::max(kLeastChunk, device_->backend().info().granularity_bytes); }

// The driver takes as long for a small handle as for a large one. Chunks grow with the memory of those that may share
// them, so that there are few, and at most a fifth is not used yet.
uint64_t Occupancy::chunk_for(const Alike& alike) const {
    return std::clamp(std::bit_floor(alike.bytes / 4 + 1), least_chunk(), std::max(least_chunk(), kLargestChunk));
}

Status Occupancy::alloc(uint64_t bytes, const std::string& name, Keeping keeping, uint64_t* out_address) {
    Turn turn;
    SH_TRY(turn.take(*this, false));
    retry_retired();
    if (is_runtime_tag(name))
        return Status(SH_ERROR_INVALID_ARGUMENT, "options.tag \"" + name + "\" begins with \"" +
                                                     std::string(kRuntimeTagPrefix) + "\", which is for runtimes");
    const bool known = tags_.count(name);
    Tag* tag = nullptr;
    {
        std::lock_guard lock(mutex_);
        tag = &tags_[name];
        name.copy(tag->info.tag, sizeof tag->info.tag - 1);
    }
    if (tag->info.state != SH_OCCUPANCY_RUNNING)
        return Status(SH_ERROR_INVALID_STATE,
                      "the tag \"" + name +
                          (tag->info.state == SH_OCCUPANCY_LOST ? "\" is lost: its memory can only be freed"
                                                                : "\" is released: resume it before allocations"));
    const Status status = no_throw([&] { return alloc_in(*tag, bytes, keeping, out_address); });
    if (status.ok() || known) return status;
    std::lock_guard lock(mutex_);
    tags_.erase(name);
    return status;
}

Status Occupancy::alloc_in(Tag& tag, uint64_t bytes, Keeping keeping, uint64_t* out_address) {
    if (bytes > kLargestAllocation)
        return Status(SH_ERROR_OUT_OF_DEVICE_MEMORY, exact_size_text(bytes) + " are more than any device has");
    auto node = spare_node<Allocations>();
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
    node.mapped() = {bytes};
    allocations_.insert(std::move(node));
    std::lock_guard lock(mutex_);
    tag.info.allocations++;
    tag.info.bytes += bytes;
    *out_address = address;
    return Status();
}

Status Occupancy::alloc_alone(Tag& tag, uint64_t bytes, Keeping keeping, uint64_t* out_address) {
    Extent* extent = nullptr;
    SH_TRY(add_extent(tag, whole(bytes, device_->backend().info().granularity_bytes), false, keeping, &extent));
    *out_address = extent->address();
    return Status();
}

// Without room for a chunk, the allocation has an extent of its own. If there is no room for that either, the budget is
// asked only once: every question makes runtimes look for memory that they could give up.
Status Occupancy::alloc_shared(Tag& tag, uint64_t bytes, Keeping keeping, uint64_t* out_address) {
    FreeSpace& free = alike_of(tag, keeping).free;
    const uint64_t taken = whole(bytes, kAlignment);
    *out_address = free.take(taken);
    if (*out_address) return Status();
    const uint64_t least = whole(bytes, device_->backend().info().granularity_bytes);
    SH_TRY(accounts_.claim(totals_.held_bytes + least));
    if (!add_chunk(tag, std::max(least, least_chunk()), keeping).ok())
        return alloc_alone(tag, bytes, keeping, out_address);
    *out_address = free.take(taken);
    return Status();
}

Status Occupancy::add_chunk(Tag& tag, uint64_t least, Keeping keeping) {
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

Status Occupancy::add_extent(Tag& tag, uint64_t bytes, bool shared, Keeping keeping, Extent** out) {
    auto node = spare_node<Extents>();
    node.mapped() = std::make_unique<Extent>(device_->backend(), &totals_, bytes, keeping);
    retired_.reserve(retired_.size() + extents_.size() + 1);  // so that retire() cannot fail
    SH_TRY(accounts_.claim(totals_.held_bytes + bytes));
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
    std::lock_guard lock(mutex_);
    tag.info.device_bytes += bytes;
    *out = &extent;
    return Status();
}

Extent& Occupancy::extent_of(uint64_t address) { return *std::prev(extents_.upper_bound(address))->second; }

Status Occupancy::free(uint64_t address) {
    Turn turn;
    SH_TRY(turn.take(*this, false));
    retry_retired();
    const auto found = allocations_.find(address);
    if (found == allocations_.end())
        return Status(SH_ERROR_INVALID_ARGUMENT,
                      "no allocation of sh_alloc() begins at address " + std::to_string(address));
    Extent& extent = extent_of(address);
    Tag& tag = *extent.tag;
    BackendDevice& backend = device_->backend();
    if (tag.info.state == SH_OCCUPANCY_RUNNING && backend.has_device_synchronize())
        SH_TRY(backend.device_synchronize());
    const uint64_t bytes = found->second.bytes;
    FreeSpace& free = alike_of(tag, extent.keeping()).free;
    const Chunk chunk{extent.address(), extent.bytes()};
    if (extent.shared) free.give(chunk, address, whole(bytes, kAlignment));
    allocations_.erase(found);
    {
        std::lock_guard lock(mutex_);
        tag.info.allocations--;
        tag.info.bytes -= bytes;
    }
    if (--extent.allocations) return Status();
    if (extent.shared) free.remove(chunk);
    remove_extent(extent);
    return Status();
}

void Occupancy::remove_extent(Extent& extent) noexcept {
    Extent* const one[] = {&extent};  // a vector could not be allocated
    stop_preparing(one);
    if (counts(extent)) alike_of(*extent.tag, extent.keeping()).bytes -= extent.bytes();
    {
        std::lock_guard lock(mutex_);
        sh_occupancy_info& info = extent.tag->info;
        info.device_bytes -= extent.device_bytes();
        info.staged_bytes -= extent.staged_bytes();
        info.host_bytes -= extent.host().bytes();
        info.pinned_bytes -= extent.host().pinned_bytes();
        info.file_bytes -= extent.file_bytes();
        pinned_bytes_ -= extent.host().pinned_bytes();
        device_->note_pinned_contents(pinned_bytes_);
    }
    retire(std::move(extents_.extract(extent.address()).mapped()));
    go_on_preparing();
}

// Gives an extent back. An extent that the driver does not take is kept, and counted, until the driver does.
void Occupancy::retire(std::unique_ptr<Extent> extent) noexcept {
    if (!let_go(*extent)) retired_.push_back(std::move(extent));
    accounts_.settle(totals_.held_bytes);
}

bool Occupancy::let_go(Extent& extent) noexcept {
    Status closed = passage_.settle();
    if (closed.ok()) closed = extent.close();
    if (!closed.ok()) log_line(SH_LOG_WARNING, "memory of sh_alloc() could not be given back: %s", closed.text());
    return closed.ok();
}

void Occupancy::retry_retired() noexcept {
    if (retired_.empty()) return;
    std::erase_if(retired_, [&](const std::unique_ptr<Extent>& extent) { return let_go(*extent); });
    accounts_.settle(totals_.held_bytes);
}

// --- Figures ---

Status Occupancy::info(const char* tag, sh_occupancy_info* out) const {
    if (!tag) {
        *out = sum_of(list());
        return Status();
    }
    if (is_runtime_tag(tag)) return runtimes_.info(tag, out);
    std::lock_guard lock(mutex_);
    const auto found = tags_.find(tag);
    if (found == tags_.end()) return unknown_tag(tag);
    *out = found->second.info;
    return Status();
}

std::vector<sh_occupancy_info> Occupancy::list() const {
    std::vector<sh_occupancy_info> all = runtimes_.infos();
    std::lock_guard lock(mutex_);
    for (const auto& [name, tag] : tags_) all.push_back(tag.info);
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return std::strcmp(a.tag, b.tag) < 0; });
    return all;
}

// Before publish() counts anew.
void Occupancy::note_arrived(Extent& extent, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    uint64_t& staged = extent.tag->info.staged_bytes;
    staged -= std::min(staged, bytes);
}

// Counts anew what the tags hold.
void Occupancy::publish() noexcept {
    std::lock_guard lock(mutex_);
    pinned_bytes_ = 0;
    for (auto& [name, tag] : tags_) {
        tag.info.device_bytes = tag.info.staged_bytes = 0;
        tag.info.host_bytes = tag.info.pinned_bytes = tag.info.file_bytes = 0;
    }
    for (const auto& [address, extent] : extents_) {
        sh_occupancy_info& info = extent->tag->info;
        info.device_bytes += extent->device_bytes();
        info.staged_bytes += extent->staged_bytes();
        info.host_bytes += extent->host().bytes();
        info.pinned_bytes += extent->host().pinned_bytes();
        info.file_bytes += extent->file_bytes();
        pinned_bytes_ += extent->host().pinned_bytes();
    }
    device_->note_pinned_contents(pinned_bytes_);
}

}  // namespace stagehand::core
