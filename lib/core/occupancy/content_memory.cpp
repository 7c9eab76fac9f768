#include "core/occupancy/content_memory.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/log.h"
#include "base/no_throw.h"
#include "platform/host_memory.h"

namespace stagehand::core {
namespace {

std::string folder_for(const PauseWishes& wishes) {
    if (!wishes.folder.empty()) return wishes.folder;
    const char* const usual = std::getenv("TMPDIR");
    return usual && *usual ? usual : "/var/tmp";
}

enum class Packs { no, yes, maybe };  // maybe: nothing leaves yet

// Chooses where contents are kept: in host memory, as far as there may be some, else in files.
class Stores {
public:
    Stores(const Extents& all, const std::vector<Extent*>& leaving, const PauseWishes& wishes,
           transfer::StagingFiles* files, bool limited, Packs packs)
        : wishes_(wishes), files_(files), packs_(packs) {
        for (const auto& [address, extent] : all)
            if (std::find(leaving.begin(), leaving.end(), extent.get()) == leaving.end()) kept_ += extent->host_end();
        if (!wishes.folder.empty()) available_ = limited ? platform::read_host_memory().available_bytes : UINT64_MAX;
    }

    // Once for each that leaves, after note_unused().
    Store next(const Extent& extent) {
        Store store;
        store.pinned = wishes_.pinned;
        store.only_prepares = packs_ == Packs::maybe;
        if (wishes_.pinned && packs_ != Packs::no) store.format = wishes_.format_of(extent);
        const uint64_t needed = extent.needed_bytes(store.format), has = extent.host_end();
        const uint64_t more = needed <= has ? 0 : needed - has;  // memory that is too small goes first
        const bool to_file = wishes_.way_of(extent).to_file ||
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

private:
    const PauseWishes& wishes_;
    transfer::StagingFiles* const files_;
    const Packs packs_;
    uint64_t kept_ = 0;       // by host memory
    uint64_t available_ = 0;  // of the machine; without limit if the engine's allocator gives the memory
};

}  // namespace

// Whether something is to be packed, and the device can. Finding that out waits for the device.
bool ContentMemory::packs(const std::vector<Extent*>& extents, const PauseWishes& wishes) {
    const auto is_packed = [&](const Extent* extent) { return wishes.format_of(*extent); };
    return wishes.pinned && std::any_of(extents.begin(), extents.end(), is_packed) && passage_.packs();
}

Status ContentMemory::reserve(const Extents& all, const std::vector<Extent*>& leaving, const PauseWishes& wishes,
                              std::vector<Extent*>* out_taken) {
    out_taken->reserve(leaving.size());
    Stores stores(all, leaving, wishes, &files_, !device_.backend().host_policy().allocate,
                  packs(leaving, wishes) ? Packs::yes : Packs::no);
    for (Extent* const extent : leaving) {
        extent->note_unused(wishes.unused);
        bool is_new = false;
        const Status status = no_throw([&] { return extent->take_host_memory(stores.next(*extent), &is_new); });
        if (is_new) out_taken->push_back(extent);
        SH_TRY(status);
    }
    return Status();
}

Status ContentMemory::begin_fill(std::vector<Extent*> extents) {
    std::erase_if(extents, [](const Extent* extent) { return extent->host().is_ready(); });
    std::vector<transfer::GradualMemory*> memories;
    for (Extent* const extent : extents) memories.push_back(&extent->host());
    return fill_.start(memories,
                       [this, extents](size_t index, bool pinned) { tags_.note_ready(*extents[index], pinned); });
}

Status ContentMemory::prepare(const Extents& all, const std::vector<Extent*>& leaving, const PauseWishes& wishes) {
    fill_.stop();
    std::vector<Extent*> wanted;
    const Status status = no_throw([&] { return prepare_more(all, leaving, wishes, &wanted); });
    if (status.ok())
        preparing_ = std::move(wanted);
    else
        go_on_preparing();
    return status;
}

Status ContentMemory::prepare_more(const Extents& all, const std::vector<Extent*>& leaving, const PauseWishes& wishes,
                                   std::vector<Extent*>* wanted) {
    *wanted = preparing_;
    Stores stores(all, leaving, wishes, &files_, !device_.backend().host_policy().allocate, Packs::maybe);
    for (Extent* const extent : leaving) {
        if (wishes.way_of(*extent).leaving != Leaving::stage) continue;
        bool is_new = false;
        extent->note_unused(wishes.unused);
        const Store store = stores.next(*extent);
        if (store.files) continue;  // nothing to pin
        SH_TRY(extent->take_host_memory(store, &is_new));
        if (std::find(wanted->begin(), wanted->end(), extent) == wanted->end()) wanted->push_back(extent);
    }
    tags_.count(all);  // memory that was too small is gone
    std::erase_if(*wanted, [](const Extent* extent) { return extent->host().is_ready(); });
    return begin_fill(*wanted);
}

void ContentMemory::stop_preparing(std::span<Extent* const> extents) noexcept {
    if (preparing_.empty()) return;
    fill_.stop();
    std::erase_if(preparing_, [&](Extent* extent) {
        return extent->host().is_ready() || std::find(extents.begin(), extents.end(), extent) != extents.end();
    });
}

void ContentMemory::go_on_preparing() noexcept {
    if (preparing_.empty()) return;
    const Status begun = no_throw([&] { return begin_fill(preparing_); });
    if (begun.ok()) return;
    log_line(SH_LOG_WARNING, "host memory is not prepared any more: %s", begun.text());
    preparing_.clear();
}

uint64_t ContentMemory::trim(const Extents& all) {
    fill_.stop();
    preparing_.clear();
    uint64_t freed = 0;
    for (const auto& [address, extent] : all) {
        if (extent->staged_bytes()) continue;
        const uint64_t bytes = extent->host().bytes();
        if (extent->drop_host_memory()) freed += bytes;
    }
    tags_.count(all);
    return freed;
}

}  // namespace stagehand::core
