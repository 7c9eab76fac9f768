// Pause and resume.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/size_text.h"
#include "core/occupancy/occupancy.h"
#include "telemetry/trace.h"

namespace stagehand::core {

std::vector<const char*> Occupancy::Chosen::names() const {
    std::vector<const char*> names;
    for (const Tag* const tag : tags) names.push_back(tag->info.tag);
    for (const std::string& tag : runtimes) names.push_back(tag.c_str());
    return names;
}

namespace {

// A call that changes no tag is left out.
void trace(const Device& device, bool resumes, const std::vector<const char*>& tags, uint64_t began,
           const sh_occupancy_change& made) {
    if (tags.empty()) return;
    telemetry::trace_occupancy(device.name().c_str(),
                               {resumes, tags, began, began + made.ns, made.device_bytes, made.copied_bytes});
}

}  // namespace

// Finds the tags of a selection that are in the wanted state: running for a pause, released for a resume.
Status Occupancy::select(const TagSelection& selection, uint32_t wanted, Chosen* out) {
    for (const char* const name : selection.names) SH_TRY(select_one(name, wanted, selection.repeat, out));
    if (!selection.names.empty()) return Status();
    for (auto& [name, tag] : tags_)
        if (tag.info.state == wanted) out->tags.push_back(&tag);
    // Some runtimes of a name may be in another state than others.
    for (const sh_occupancy_info& runtime : runtimes_.infos())
        if (runtime.state == wanted || runtime.state == SH_OCCUPANCY_MIXED) out->runtimes.push_back(runtime.tag);
    return Status();
}

Status Occupancy::select_one(const char* name, uint32_t wanted, bool repeat, Chosen* out) {
    sh_occupancy_info info;
    SH_TRY(this->info(name, &info));
    if (info.state != wanted && info.state != SH_OCCUPANCY_MIXED) {
        const std::string tag = "the tag \"" + std::string(name) + "\" is ";
        if (info.state == SH_OCCUPANCY_LOST) return Status(SH_ERROR_INVALID_STATE, tag + "lost");
        if (repeat) return Status();
        return Status(SH_ERROR_INVALID_STATE,
                      tag + (wanted == SH_OCCUPANCY_RUNNING ? "released already" : "not released"));
    }
    if (is_runtime_tag(name)) {
        if (std::find(out->runtimes.begin(), out->runtimes.end(), name) == out->runtimes.end())
            out->runtimes.push_back(name);
        return Status();
    }
    Tag* const tag = &tags_.find(name)->second;
    if (std::find(out->tags.begin(), out->tags.end(), tag) == out->tags.end()) out->tags.push_back(tag);
    return Status();
}

// In the order of the tags.
std::vector<Extent*> Occupancy::extents_of(const std::vector<Tag*>& tags) {
    std::vector<Extent*> result;
    for (const Tag* const tag : tags)
        for (const auto& [address, extent] : extents_)
            if (extent->tag == tag) result.push_back(extent.get());
    return result;
}

void Occupancy::set_state(const std::vector<Tag*>& tags, uint32_t state) {
    std::lock_guard lock(mutex_);
    for (Tag* const tag : tags) tag->info.state = state;
}

void Occupancy::note_carried(const Carried& before, sh_occupancy_change* out) const {
    const Carried& now = passage_.carried();
    out->copied_bytes = now.bytes - before.bytes;
    out->packed_bytes = now.packed - before.packed;
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

Status Occupancy::pause(const TagSelection& selection, PauseWishes wishes, sh_occupancy_change* out) {
    Turn turn;
    SH_TRY(turn.take(*this, selection.no_wait));
    SH_TRY(can_pause());
    retry_retired();
    find_unused(&wishes.unused);
    Chosen chosen;
    SH_TRY(select(selection, SH_OCCUPANCY_RUNNING, &chosen));
    const std::vector<const char*> names = chosen.names();
    const uint64_t began = device_->backend().now_ns(), held = totals_.held_bytes;
    const Carried before = passage_.carried();
    SH_TRY(callbacks_.before_pause(names));
    set_state(chosen.tags, SH_OCCUPANCY_RELEASING);
    Release made{wishes, CallTimes(device_->backend(), totals_, passage_)};
    const Status status = no_throw([&] { return release_all(chosen, &made); });
    fill_.stop();
    accounts_.settle(totals_.held_bytes);
    publish();
    go_on_preparing();
    const bool lost = !made.released && status.code() == SH_ERROR_DEVICE_LOST;
    set_state(chosen.tags, made.released ? SH_OCCUPANCY_RELEASED : lost ? SH_OCCUPANCY_LOST : SH_OCCUPANCY_RUNNING);
    if (!made.released) callbacks_.after_resume(names);
    SH_TRY(status);
    out->tag_count = static_cast<uint32_t>(chosen.count());
    out->device_bytes = held - totals_.held_bytes + made.runtime_bytes;
    note_carried(before, out);
    out->unchanged_bytes = made.unchanged_bytes;
    out->ns = device_->backend().now_ns() - began;
    trace(*device_, false, names, began, *out);
    made.times.log(device_->name(), "sh_pause()", out->ns);
    log_line(SH_LOG_INFO, "%s: %s were given back, %s of contents are kept, %s of them from before",
             device_->name().c_str(), size_text(out->device_bytes).c_str(),
             size_text(out->copied_bytes + out->unchanged_bytes).c_str(), size_text(out->unchanged_bytes).c_str());
    return Status();
}

// Runtimes come first: a view that is held refuses the pause, and their dirty blocks may go to memory of sh_alloc().
Status Occupancy::release_all(const Chosen& chosen, Release* made) {
    SH_TRY(passage_.open());
    SH_TRY(passage_.settle());
    SH_TRY(made->times.for_earlier_work([&] { return device_->backend().device_synchronize(); }));
    const std::vector<Extent*> extents = extents_of(chosen.tags);
    RuntimeTags::Change runtimes(device_->pausables());
    SH_TRY(runtimes.release(chosen.runtimes));
    Status status = no_throw([&] { return release(extents, made); });
    if (made->released) {
        made->runtime_bytes = runtimes.bytes();
    } else if (const Status back = runtimes.undo_release(); !back.ok()) {
        return status.within(back.text());
    }
    return status;
}

Status Occupancy::release(const std::vector<Extent*>& extents, Release* made) {
    const PauseWishes& wishes = made->wishes;
    std::vector<Extent*> staged, taken;
    for (Extent* const extent : extents) {
        extent->leaving = wishes.contents.value_or(extent->keeping().way_out).leaving;
        if (extent->leaving == Leaving::stage) staged.push_back(extent);
    }
    stop_preparing(extents);
    Status status = made->times.for_host_memory([&] { return reserve_host_memory(staged, wishes, &taken); });
    if (status.ok()) {
        made->unchanged_bytes = made->times.for_comparison(
            [&] { return choose_copies(device_->backend(), extents, wishes.copy_all, passage_.stream_to_host()); });
        // Not before: the system holds up what the comparison asks the driver for while memory becomes present.
        status = made->times.for_host_memory([&] { return begin_fill(staged); });
    }
    if (!status.ok()) {
        for (Extent* const extent : taken) extent->drop_host_memory();
        return status;
    }
    const Status left = passage_.leave(extents, fill_);
    fill_.stop();
    if (!left.ok() && no_throw([&] { return passage_.come_back(extents); }).ok()) {
        if (passage_.is_settled())
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
    Chosen chosen;
    SH_TRY(select(selection, SH_OCCUPANCY_RELEASED, &chosen));
    const std::vector<const char*> names = chosen.names();
    const uint64_t began = device_->backend().now_ns(), held = totals_.held_bytes;
    const Carried before = passage_.carried();
    set_state(chosen.tags, SH_OCCUPANCY_RESUMING);
    const CallTimes times(device_->backend(), totals_, passage_);
    uint64_t runtime_bytes = 0;
    const Status status =
        device_->retry_after_loans([&] { return no_throw([&] { return bring_back(chosen, &runtime_bytes); }); });
    if (!status.ok()) accounts_.settle(totals_.held_bytes);
    publish();
    set_state(chosen.tags, status.ok() ? SH_OCCUPANCY_RUNNING : SH_OCCUPANCY_RELEASED);
    SH_TRY(status);
    {
        std::lock_guard lock(mutex_);
        for (Tag* const tag : chosen.tags) tag->info.cycles++;
    }
    callbacks_.after_resume(names);
    out->tag_count = static_cast<uint32_t>(chosen.count());
    out->device_bytes = totals_.held_bytes - held + runtime_bytes;
    note_carried(before, out);
    out->unchanged_bytes = 0;
    out->ns = device_->backend().now_ns() - began;
    trace(*device_, true, names, began, *out);
    times.log(device_->name(), "sh_resume()", out->ns);
    log_line(SH_LOG_INFO, "%s: %s were taken, %s of contents came back", device_->name().c_str(),
             size_text(out->device_bytes).c_str(), size_text(out->copied_bytes).c_str());
    return Status();
}

// Runtimes take their memory beside what is claimed for the rest, and load nothing before the rest is there: it may
// have their sources.
Status Occupancy::bring_back(const Chosen& chosen, uint64_t* out_runtime_bytes) {
    SH_TRY(passage_.settle());
    const std::vector<Extent*> extents = extents_of(chosen.tags);
    uint64_t missing = 0;
    for (const Extent* const extent : extents) missing += extent->missing_bytes();
    if (missing) SH_TRY(accounts_.claim(totals_.held_bytes + missing));
    RuntimeTags::Change runtimes(device_->pausables());
    SH_TRY(runtimes.take(chosen.runtimes));
    const Status status = no_throw([&] { return passage_.come_back(extents); });
    if (!status.ok()) {
        runtimes.undo_take();
        return status;
    }
    runtimes.run();
    *out_runtime_bytes = runtimes.bytes();
    return status;
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
    callbacks_.remove(id);
    return Status();
}

}  // namespace stagehand::core
