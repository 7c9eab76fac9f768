// Pause and resume.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/size_text.h"
#include "core/occupancy/occupancy.h"

namespace stagehand::core {
namespace {

std::vector<const char*> names_of(const std::vector<Tag*>& tags) {
    std::vector<const char*> names;
    for (const Tag* const tag : tags) names.push_back(tag->info.tag);
    return names;
}

}  // namespace

// Finds the tags of a selection that are in the wanted state: running for a pause, released for a resume.
Status Occupancy::select(const TagSelection& selection, uint32_t wanted, std::vector<Tag*>* out) {
    if (selection.names.empty()) {
        for (auto& [name, tag] : tags_)
            if (tag.info.state == wanted) out->push_back(&tag);
        return Status();
    }
    for (const char* const name : selection.names) {
        const auto found = tags_.find(name);
        if (found == tags_.end())
            return Status(SH_ERROR_NOT_FOUND, "there is no tag \"" + std::string(name) + "\" on the device");
        Tag& tag = found->second;
        if (std::find(out->begin(), out->end(), &tag) != out->end()) continue;
        if (tag.info.state == wanted) {
            out->push_back(&tag);
        } else if (!selection.repeat) {
            return Status(SH_ERROR_INVALID_STATE,
                          "the tag \"" + std::string(name) +
                              (wanted == SH_OCCUPANCY_RUNNING ? "\" is released already" : "\" is not released"));
        }
    }
    return Status();
}

std::vector<Extent*> Occupancy::extents_of(const std::vector<Tag*>& tags) {
    std::vector<Extent*> result;
    for (const auto& [address, extent] : extents_)
        if (std::find(tags.begin(), tags.end(), extent->tag) != tags.end()) result.push_back(extent.get());
    return result;
}

void Occupancy::set_state(const std::vector<Tag*>& tags, uint32_t state) {
    std::lock_guard lock(mutex_);
    for (Tag* const tag : tags) tag->info.state = state;
}

// --- Pause ---

Status Occupancy::can_pause() const {
    const BackendDevice& backend = device_->backend();
    if (!backend.maps_pages())
        return Status(SH_ERROR_UNSUPPORTED,
                      device_->name() + " does not map memory by pages: memory cannot leave and keep its address");
    if (!backend.has_device_synchronize())
        return Status(SH_ERROR_UNSUPPORTED, "the backend of " + device_->name() +
                                                " cannot wait for all work on the device: memory cannot be paused");
    return Status();
}

Status Occupancy::pause(const TagSelection& selection, const PauseWishes& wishes, sh_occupancy_change* out) {
    Turn turn;
    SH_TRY(turn.take(*this, selection.no_wait));
    SH_TRY(can_pause());
    retry_retired();
    std::vector<Tag*> tags;
    SH_TRY(select(selection, SH_OCCUPANCY_RUNNING, &tags));
    const std::vector<Extent*> extents = extents_of(tags);
    const std::vector<const char*> names = names_of(tags);
    const uint64_t began = device_->backend().now_ns(), held = totals_.held_bytes, copied = passage_.copied_bytes();
    SH_TRY(callbacks_.before_pause(names));
    set_state(tags, SH_OCCUPANCY_RELEASING);
    Release made{wishes, CallTimes(device_->backend(), totals_, passage_)};
    const Status status = no_throw([&] { return release(extents, &made); });
    fill_.stop();
    accounts_.settle(totals_.held_bytes);
    publish();
    go_on_preparing();
    set_state(tags, made.released ? SH_OCCUPANCY_RELEASED : SH_OCCUPANCY_RUNNING);
    if (!made.released) callbacks_.after_resume(names);
    SH_TRY(status);
    out->tag_count = static_cast<uint32_t>(tags.size());
    out->device_bytes = held - totals_.held_bytes;
    out->copied_bytes = passage_.copied_bytes() - copied;
    out->unchanged_bytes = made.unchanged_bytes;
    out->ns = device_->backend().now_ns() - began;
    made.times.log(device_->name(), "sh_pause()", out->ns);
    log_line(SH_LOG_INFO, "%s: %s were given back, %s of contents are in host memory, %s of them from before",
             device_->name().c_str(), size_text(out->device_bytes).c_str(),
             size_text(out->copied_bytes + out->unchanged_bytes).c_str(), size_text(out->unchanged_bytes).c_str());
    return Status();
}

Status Occupancy::release(const std::vector<Extent*>& extents, Release* made) {
    const PauseWishes& wishes = made->wishes;
    SH_TRY(passage_.open(device_->lanes()));
    if (passage_.is_doubtful()) SH_TRY(passage_.settle());
    SH_TRY(made->times.for_earlier_work([&] { return device_->backend().device_synchronize(); }));
    for (Extent* const extent : extents) extent->leaving = wishes.contents.value_or(extent->contents);
    stop_preparing(extents);
    std::vector<Extent*> taken;
    SH_TRY(made->times.for_host_memory([&] { return take_host_memory(extents, wishes.unused, &taken); }));
    made->unchanged_bytes = made->times.for_comparison(
        [&] { return choose_copies(device_->backend(), extents, wishes.copy_all, passage_.stream_to_host()); });
    const Status left = passage_.leave(extents, fill_);
    fill_.stop();
    if (!left.ok() && no_throw([&] { return passage_.come_back(extents); }).ok()) {
        if (!passage_.is_doubtful())
            for (Extent* const extent : taken) extent->drop_host_memory();
        return left.within("the tags run");
    }
    made->released = true;
    const Status lost = lose(extents);
    if (!left.ok())
        return left.within("the tags are released with their contents, because they could not come back either");
    return lost.within("the tags are released, but part of their memory stays on the device");
}

// There is no way back any more: what is not staged is lost.
Status Occupancy::lose(const std::vector<Extent*>& extents) {
    Status status;
    for (Extent* const extent : extents) {
        if (extent->leaving == Leaving::stage) continue;
        extent->note_new_contents();
        for (Handle& handle : extent->handles()) {
            handle.filled = false;
            if (const Status detached = extent->detach(handle); status.ok()) status = detached;
        }
    }
    return status;
}

// --- Resume ---

Status Occupancy::resume(const TagSelection& selection, sh_occupancy_change* out) {
    Turn turn;
    SH_TRY(turn.take(*this, selection.no_wait));
    retry_retired();
    std::vector<Tag*> tags;
    SH_TRY(select(selection, SH_OCCUPANCY_RELEASED, &tags));
    const std::vector<Extent*> extents = extents_of(tags);
    const std::vector<const char*> names = names_of(tags);
    const uint64_t began = device_->backend().now_ns(), held = totals_.held_bytes, copied = passage_.copied_bytes();
    set_state(tags, SH_OCCUPANCY_RESUMING);
    const CallTimes times(device_->backend(), totals_, passage_);
    const Status status = no_throw([&] { return bring_back(extents); });
    if (!status.ok()) accounts_.settle(totals_.held_bytes);
    publish();
    set_state(tags, status.ok() ? SH_OCCUPANCY_RUNNING : SH_OCCUPANCY_RELEASED);
    SH_TRY(status);
    {
        std::lock_guard lock(mutex_);
        for (Tag* const tag : tags) tag->info.cycles++;
    }
    callbacks_.after_resume(names);
    out->tag_count = static_cast<uint32_t>(tags.size());
    out->device_bytes = totals_.held_bytes - held;
    out->copied_bytes = passage_.copied_bytes() - copied;
    out->ns = device_->backend().now_ns() - began;
    times.log(device_->name(), "sh_resume()", out->ns);
    log_line(SH_LOG_INFO, "%s: %s were taken, %s of contents came back", device_->name().c_str(),
             size_text(out->device_bytes).c_str(), size_text(out->copied_bytes).c_str());
    return Status();
}

Status Occupancy::bring_back(const std::vector<Extent*>& extents) {
    if (passage_.is_doubtful()) SH_TRY(passage_.settle());
    uint64_t missing = 0;
    for (const Extent* const extent : extents) missing += extent->missing_bytes();
    if (missing) SH_TRY(accounts_.claim(totals_.held_bytes + missing));
    return passage_.come_back(extents);
}

// --- Callbacks ---

Status Occupancy::add_callbacks(const OccupancyCallbacks& callbacks, uint64_t* out_id) {
    Turn turn;
    SH_TRY(turn.take(*this, false));
    *out_id = callbacks_.add(callbacks);
    return Status();
}

Status Occupancy::remove_callbacks(uint64_t id) {
    Turn turn;
    SH_TRY(turn.take(*this, false));
    if (callbacks_.remove(id)) return Status();
    return Status(SH_ERROR_NOT_FOUND, "there are no callbacks " + std::to_string(id) + " on the device");
}

}  // namespace stagehand::core
