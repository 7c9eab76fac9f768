#include "core/occupancy/tags.h"

#include <algorithm>
#include <cstring>

namespace stagehand::core {
namespace {

sh_occupancy_info sum_of(const std::vector<sh_occupancy_info>& all) {
    auto sum = sh_sized<sh_occupancy_info>();
    if (!all.empty()) sum.state = all.front().state;
    for (const sh_occupancy_info& info : all) {
        if (sum.state != info.state) sum.state = SH_OCCUPANCY_MIXED;
        sum.allocations += info.allocations;
        sum.bytes += info.bytes;
        sum.device_bytes += info.device_bytes;
        sum.staged_bytes += info.staged_bytes;
        sum.host_bytes += info.host_bytes;
        sum.pinned_bytes += info.pinned_bytes;
        sum.cycles += info.cycles;
        sum.file_bytes += info.file_bytes;
    }
    return sum;
}

}  // namespace

std::vector<const char*> ChosenTags::names() const {
    std::vector<const char*> names;
    for (const Tag* const tag : tags) names.push_back(tag->info.tag);
    for (const std::string& tag : runtimes) names.push_back(tag.c_str());
    return names;
}

Status Tags::info(const char* name, sh_occupancy_info* out) const {
    if (!name) {
        *out = sum_of(list());
        return Status();
    }
    if (is_runtime_tag(name)) return runtimes_.info(name, out);
    const std::lock_guard lock(mutex_);
    const auto found = tags_.find(name);
    if (found == tags_.end())
        return Status(SH_ERROR_NOT_FOUND, "there is no tag \"" + std::string(name) + "\" on the device");
    *out = found->second.info;
    return Status();
}

std::vector<sh_occupancy_info> Tags::list() const {
    std::vector<sh_occupancy_info> all = runtimes_.infos();
    const std::lock_guard lock(mutex_);
    for (const auto& [name, tag] : tags_) all.push_back(tag.info);
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return std::strcmp(a.tag, b.tag) < 0; });
    return all;
}

Tag& Tags::get(const std::string& name, bool* out_is_new) {
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = tags_.try_emplace(name);
    if (is_new) name.copy(entry->second.info.tag, sizeof entry->second.info.tag - 1);
    *out_is_new = is_new;
    return entry->second;
}

void Tags::remove(const std::string& name) {
    const std::lock_guard lock(mutex_);
    tags_.erase(name);
}

Status Tags::select(const TagSelection& selection, uint32_t wanted, ChosenTags* out) {
    for (const char* const name : selection.names) SH_TRY(select_one(name, wanted, selection.repeat, out));
    if (!selection.names.empty()) return Status();
    for (auto& [name, tag] : tags_)
        if (tag.info.state == wanted) out->tags.push_back(&tag);
    // Some runtimes of a name may be in another state than others.
    for (const sh_occupancy_info& runtime : runtimes_.infos())
        if (runtime.state == wanted || runtime.state == SH_OCCUPANCY_MIXED) out->runtimes.push_back(runtime.tag);
    return Status();
}

Status Tags::select_one(const char* name, uint32_t wanted, bool repeat, ChosenTags* out) {
    sh_occupancy_info info;
    SH_TRY(this->info(name, &info));
    if (info.state != wanted && info.state != SH_OCCUPANCY_MIXED) {
        const std::string tag = "the tag \"" + std::string(name) + "\" is ";
        if (info.state == SH_OCCUPANCY_LOST) return Status(SH_ERROR_INVALID_STATE, tag + "lost");
        if (repeat) return Status();
        return Status(SH_ERROR_INVALID_STATE,
                      tag + (wanted == SH_OCCUPANCY_RUNNING ? "released already" : "not released"));
    }
    const auto add_once = [](auto& all, auto one) {
        if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
    };
    if (is_runtime_tag(name))
        add_once(out->runtimes, std::string(name));
    else
        add_once(out->tags, &tags_.find(name)->second);
    return Status();
}

void Tags::set_state(const ChosenTags& chosen, uint32_t state) {
    const std::lock_guard lock(mutex_);
    for (Tag* const tag : chosen.tags) tag->info.state = state;
}

void Tags::note_cycle(const ChosenTags& chosen) {
    const std::lock_guard lock(mutex_);
    for (Tag* const tag : chosen.tags) tag->info.cycles++;
}

void Tags::note_allocation(Tag& tag, uint64_t bytes, bool is_there) {
    const std::lock_guard lock(mutex_);
    tag.info.allocations += is_there ? 1 : -1;
    tag.info.bytes += is_there ? bytes : -bytes;
}

void Tags::note_opened(const Extent& extent) {
    const std::lock_guard lock(mutex_);
    extent.tag->info.device_bytes += extent.bytes();
}

void Tags::add(const Extent& extent, bool is_there) noexcept {
    sh_occupancy_info& info = extent.tag->info;
    const auto change = [&](uint64_t& sum, uint64_t bytes) { sum += is_there ? bytes : -bytes; };
    change(info.device_bytes, extent.device_bytes());
    change(info.staged_bytes, extent.staged_bytes());
    change(info.host_bytes, extent.host().bytes());
    change(info.pinned_bytes, extent.host().pinned_bytes());
    change(info.file_bytes, extent.file_bytes());
    change(pinned_bytes_, extent.host().pinned_bytes());
}

void Tags::note_removed(const Extent& extent) noexcept {
    const std::lock_guard lock(mutex_);
    add(extent, false);
    device_.note_pinned_contents(pinned_bytes_);
}

void Tags::note_arrived(const Extent& extent, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    uint64_t& staged = extent.tag->info.staged_bytes;
    staged -= std::min(staged, bytes);
}

void Tags::note_ready(Extent& extent, bool pinned) {
    const std::lock_guard lock(mutex_);
    transfer::GradualMemory& memory = extent.host();
    const uint64_t bytes = memory.bytes(), pinned_bytes = memory.pinned_bytes();
    memory.note_ready(pinned);
    extent.tag->info.host_bytes += memory.bytes() - bytes;
    extent.tag->info.pinned_bytes += memory.pinned_bytes() - pinned_bytes;
    pinned_bytes_ += memory.pinned_bytes() - pinned_bytes;
    device_.note_pinned_contents(pinned_bytes_);
}

void Tags::count(const Extents& extents) noexcept {
    const std::lock_guard lock(mutex_);
    pinned_bytes_ = 0;
    for (auto& [name, tag] : tags_) {
        tag.info.device_bytes = tag.info.staged_bytes = 0;
        tag.info.host_bytes = tag.info.pinned_bytes = tag.info.file_bytes = 0;
    }
    for (const auto& [address, extent] : extents) add(*extent, true);
    device_.note_pinned_contents(pinned_bytes_);
}

}  // namespace stagehand::core
