// The host memory for contents: its preparation in the background, its allocation in a pause, and its end.
#include <algorithm>
#include <cstdlib>

#include "base/log.h"
#include "base/no_throw.h"
#include "core/occupancy/occupancy.h"
#include "platform/host_memory.h"

namespace stagehand::core {

namespace {

std::string folder_for(const PauseWishes& wishes) {
    if (!wishes.folder.empty()) return wishes.folder;
    const char* const usual = std::getenv("TMPDIR");
    return usual && *usual ? usual : "/var/tmp";
}

}  // namespace

Occupancy::Stores::Stores(const Extents& all, const std::vector<Extent*>& leaving, const PauseWishes& wishes,
                          transfer::StagingFiles* files, bool limited, Packs packs)
    : wishes_(wishes), files_(files), packs_(packs) {
    for (const auto& [address, extent] : all)
        if (std::find(leaving.begin(), leaving.end(), extent.get()) == leaving.end()) kept_ += extent->host_end();
    if (!wishes.folder.empty()) available_ = limited ? platform::read_host_memory().available_bytes : UINT64_MAX;
}

Store Occupancy::Stores::next(const Extent& extent) {
    Store store;
    store.pinned = wishes_.pinned;
    store.only_prepares = packs_ == Packs::maybe;
    if (wishes_.pinned && packs_ != Packs::no) store.format = wishes_.format_of(extent);
    const uint64_t needed = extent.needed_bytes(store.format), has = extent.host_end();
    const uint64_t more = needed <= has ? 0 : needed - has;  // memory that is too small goes first
    const bool to_file = wishes_.contents.value_or(extent.keeping().way_out).to_file ||
                         (wishes_.host_bytes && kept_ + needed > wishes_.host_bytes) ||
                         (!wishes_.folder.empty() && more > available_);
    if (to_file) {
        store.files = files_;
        store.folder = folder_for(wishes_);
    } else {
        kept_ += std::max(needed, has);
        available_ -= std::min(available_, more);
    }
    return store;
}

// Whether something is to be packed, and the device can. Finding that out waits for the device.
bool Occupancy::packs(const std::vector<Extent*>& extents, const PauseWishes& wishes) {
    const auto is_packed = [&](const Extent* extent) {
        return extent->leaving == Leaving::stage && wishes.format_of(*extent);
    };
    return wishes.pinned && std::any_of(extents.begin(), extents.end(), is_packed) && passage_.packs();
}

// Adds to what the engine has named what no allocation has. Puts all in order, neighbours as one.
void Occupancy::find_unused(std::vector<AddressRange>* ranges) const {
    for (const auto& [name, tag] : tags_)
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

// Reserves what is missing for extents that are staged. There is room for all of it when the first contents leave.
Status Occupancy::reserve_host_memory(const std::vector<Extent*>& extents, const PauseWishes& wishes,
                                      std::vector<Extent*>* taken) {
    taken->reserve(extents.size());
    Stores stores(extents_, extents, wishes, &files_, !device_->backend().host_policy().allocate,
                  packs(extents, wishes) ? Stores::Packs::yes : Stores::Packs::no);
    for (Extent* const extent : extents) {
        extent->note_unused(wishes.unused);
        bool is_new = false;
        const Status status = no_throw([&] { return extent->take_host_memory(stores.next(*extent), &is_new); });
        if (is_new) taken->push_back(extent);
        SH_TRY(status);
    }
    return Status();
}

// Begins to make the host memory of these extents ready, as far as it is not.
Status Occupancy::begin_fill(std::vector<Extent*> extents) {
    std::erase_if(extents, [](const Extent* extent) { return extent->host().is_ready(); });
    std::vector<transfer::GradualMemory*> memories;
    for (Extent* const extent : extents) memories.push_back(&extent->host());
    return fill_.start(memories, [this, extents](size_t index, bool pinned) { note_ready(*extents[index], pinned); });
}

// Runs on the thread that pins.
void Occupancy::note_ready(Extent& extent, bool pinned) {
    std::lock_guard lock(mutex_);
    transfer::GradualMemory& memory = extent.host();
    const uint64_t bytes = memory.bytes(), pinned_bytes = memory.pinned_bytes();
    memory.note_ready(pinned);
    extent.tag->info.host_bytes += memory.bytes() - bytes;
    extent.tag->info.pinned_bytes += memory.pinned_bytes() - pinned_bytes;
    pinned_bytes_ += memory.pinned_bytes() - pinned_bytes;
    device_->note_pinned_contents(pinned_bytes_);
}

// --- In the background ---

Status Occupancy::prepare(const TagSelection& selection, PauseWishes wishes) {
    Turn turn;
    SH_TRY(turn.take(*this, selection.no_wait));
    SH_TRY(can_pause());
    find_unused(&wishes.unused);
    Chosen chosen;
    SH_TRY(select(selection, SH_OCCUPANCY_RUNNING, &chosen));
    SH_TRY(passage_.settle());
    fill_.stop();
    std::vector<Extent*> wanted;
    const Status status = no_throw([&] {
        wanted = preparing_;
        const std::vector<Extent*> extents = extents_of(chosen.tags);
        Stores stores(extents_, extents, wishes, &files_, !device_->backend().host_policy().allocate,
                      Stores::Packs::maybe);
        for (Extent* const extent : extents) {
            if (wishes.contents.value_or(extent->keeping().way_out).leaving != Leaving::stage) continue;
            bool is_new = false;
            extent->note_unused(wishes.unused);
            const Store store = stores.next(*extent);
            if (store.files) continue;  // nothing to pin
            SH_TRY(extent->take_host_memory(store, &is_new));
            if (std::find(wanted.begin(), wanted.end(), extent) == wanted.end()) wanted.push_back(extent);
        }
        publish();  // memory that was too small is gone
        std::erase_if(wanted, [](const Extent* extent) { return extent->host().is_ready(); });
        return begin_fill(wanted);
    });
    if (status.ok())
        preparing_ = std::move(wanted);
    else
        go_on_preparing();
    return status;
}

// The memory of these extents is not prepared any more. What is ready stays.
void Occupancy::stop_preparing(std::span<Extent* const> extents) noexcept {
    if (preparing_.empty()) return;
    fill_.stop();
    std::erase_if(preparing_, [&](Extent* extent) {
        return extent->host().is_ready() || std::find(extents.begin(), extents.end(), extent) != extents.end();
    });
}

void Occupancy::go_on_preparing() noexcept {
    if (preparing_.empty()) return;
    const Status begun = no_throw([&] { return begin_fill(preparing_); });
    if (begun.ok()) return;
    log_line(SH_LOG_WARNING, "host memory is not prepared any more: %s", begun.text());
    preparing_.clear();
}

Status Occupancy::trim(uint64_t* out_bytes) {
    Turn turn;
    SH_TRY(turn.take(*this, false));
    retry_retired();
    SH_TRY(passage_.settle());
    fill_.stop();
    preparing_.clear();
    passage_.free_buffers();
    uint64_t freed = 0;
    for (const auto& [address, extent] : extents_) {
        if (extent->staged_bytes()) continue;
        const uint64_t bytes = extent->host().bytes();
        if (extent->drop_host_memory()) freed += bytes;
    }
    publish();
    *out_bytes = freed;
    return Status();
}

}  // namespace stagehand::core
