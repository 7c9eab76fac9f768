#include "core/occupancy/occupancy.h"

#include <algorithm>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/size_text.h"
#include "core/occupancy/comparison.h"
#include "core/occupancy/contents_read.h"
#include "telemetry/trace.h"

namespace stagehand::core {

Occupancy::Occupancy(std::shared_ptr<Device> device)
    : device_(std::move(device)),
      tags_(*device_),
      passage_(*device_, [this](Extent& extent, uint64_t bytes) { tags_.note_arrived(extent, bytes); }),
      memory_(*device_, tags_, passage_),
      allocations_(*device_, tags_, memory_, passage_) {}

Occupancy::~Occupancy() { memory_.fill().stop(); }

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

// --- Memory ---

Status Occupancy::alloc(uint64_t bytes, const std::string& name, Keeping keeping, uint64_t* out_address) {
    Turn turn;
    SH_TRY(turn.take(*this, false));
    allocations_.retry_retired();
    if (is_runtime_tag(name))
        return Status(SH_ERROR_INVALID_ARGUMENT, "options.tag \"" + name + "\" begins with \"" +
                                                     std::string(kRuntimeTagPrefix) + "\", which is for runtimes");
    bool is_new = false;
    Tag& tag = tags_.get(name, &is_new);
    if (tag.info.state != SH_OCCUPANCY_RUNNING)
        return Status(SH_ERROR_INVALID_STATE,
                      "the tag \"" + name +
                          (tag.info.state == SH_OCCUPANCY_LOST ? "\" is lost: its memory can only be freed"
                                                               : "\" is released: resume it before allocations"));
    const Status status = no_throw([&] { return allocations_.alloc(tag, bytes, keeping, out_address); });
    if (!status.ok() && is_new) tags_.remove(name);
    return status;
}

Status Occupancy::free(uint64_t address) {
    Turn turn;
    SH_TRY(turn.take(*this, false));
    allocations_.retry_retired();
    return allocations_.free(address);
}

Status Occupancy::read(uint64_t address, uint64_t bytes, void* out) {
    Turn turn;
    SH_TRY(turn.take(*this, false));
    const Extent* extent = nullptr;
    SH_TRY(allocations_.find(address, bytes, &extent));
    if (device_->backend().has(SH_BACKEND_CONTENTLESS))
        return Status(SH_ERROR_UNSUPPORTED, device_->name() + " has no contents");
    const std::string tag = "\"" + std::string(extent->tag->info.tag) + "\"";
    if (extent->tag->info.state != SH_OCCUPANCY_RELEASED)
        return Status(SH_ERROR_INVALID_STATE, "the tag " + tag + " is not released");
    if (extent->leaving == Leaving::drop)
        return Status(SH_ERROR_NOT_FOUND, "the contents of the tag " + tag + " at this address were dropped");
    return read_contents(*extent, address - extent->address(), bytes, out);
}

Status Occupancy::trim(uint64_t* out_bytes) {
    Turn turn;
    SH_TRY(turn.take(*this, false));
    allocations_.retry_retired();
    SH_TRY(passage_.settle());
    passage_.free_buffers();
    *out_bytes = memory_.trim(allocations_.extents());
    return Status();
}

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

// Adds to what the engine has named what no allocation has. Puts all in order, neighbours as one.
void Occupancy::find_unused(PauseWishes* wishes) const {
    std::vector<AddressRange>& ranges = wishes->unused;
    allocations_.find_unused(&ranges);
    std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    size_t kept = 0;
    for (const AddressRange range : ranges) {
        if (kept && ranges[kept - 1].end >= range.begin)
            ranges[kept - 1].end = std::max(ranges[kept - 1].end, range.end);
        else
            ranges[kept++] = range;
    }
    ranges.resize(kept);
}

Status Occupancy::prepare(const TagSelection& selection, PauseWishes wishes) {
    Turn turn;
    SH_TRY(turn.take(*this, selection.no_wait));
    SH_TRY(can_pause());
    find_unused(&wishes);
    ChosenTags chosen;
    SH_TRY(tags_.select(selection, SH_OCCUPANCY_RUNNING, &chosen));
    SH_TRY(passage_.settle());
    return memory_.prepare(allocations_.extents(), allocations_.extents_of(chosen.tags), wishes);
}

Status Occupancy::pause(const TagSelection& selection, PauseWishes wishes, sh_occupancy_change* out) {
    Turn turn;
    SH_TRY(turn.take(*this, selection.no_wait));
    SH_TRY(can_pause());
    allocations_.retry_retired();
    find_unused(&wishes);
    ChosenTags chosen;
    SH_TRY(tags_.select(selection, SH_OCCUPANCY_RUNNING, &chosen));
    const std::vector<const char*> names = chosen.names();
    const uint64_t began = device_->backend().now_ns(), held = allocations_.totals().held_bytes;
    const Carried before = passage_.carried();
    SH_TRY(callbacks_.before_pause(names));
    tags_.set_state(chosen, SH_OCCUPANCY_RELEASING);
    Release made{wishes, CallTimes(device_->backend(), allocations_.totals(), passage_)};
    const Status status = no_throw([&] { return release_all(chosen, &made); });
    memory_.fill().stop();
    allocations_.settle();
    tags_.count(allocations_.extents());
    memory_.go_on_preparing();
    const bool lost = !made.released && status.code() == SH_ERROR_DEVICE_LOST;
    tags_.set_state(chosen, made.released ? SH_OCCUPANCY_RELEASED : lost ? SH_OCCUPANCY_LOST : SH_OCCUPANCY_RUNNING);
    if (!made.released) callbacks_.after_resume(names);
    SH_TRY(status);
    out->tag_count = chosen.count();
    out->device_bytes = held - allocations_.totals().held_bytes + made.runtime_bytes;
    out->unchanged_bytes = made.unchanged_bytes;
    tell(false, names, began, before, made.times, out);
    log_line(SH_LOG_INFO, "%s: %s were given back, %s of contents are kept, %s of them from before",
             device_->name().c_str(), size_text(out->device_bytes).c_str(),
             size_text(out->copied_bytes + out->unchanged_bytes).c_str(), size_text(out->unchanged_bytes).c_str());
    return Status();
}

// Fills in what was carried and the time, and writes the trace and the times. The trace leaves out a call that changes
// no tag.
void Occupancy::tell(bool resumes, const std::vector<const char*>& tags, uint64_t began, const Carried& before,
                     const CallTimes& times, sh_occupancy_change* out) const {
    const Carried& now = passage_.carried();
    out->copied_bytes = now.bytes - before.bytes;
    out->packed_bytes = now.packed - before.packed;
    out->ns = device_->backend().now_ns() - began;
    if (!tags.empty())
        telemetry::trace_occupancy(device_->name().c_str(),
                                   {resumes, tags, began, began + out->ns, out->device_bytes, out->copied_bytes});
    times.log(device_->name(), resumes ? "sh_resume()" : "sh_pause()", out->ns);
}

// Runtimes come first: a view that is held refuses the pause, and their dirty blocks may go to memory of sh_alloc().
Status Occupancy::release_all(const ChosenTags& chosen, Release* made) {
    SH_TRY(passage_.open());
    SH_TRY(passage_.settle());
    SH_TRY(made->times.for_earlier_work([&] { return device_->backend().device_synchronize(); }));
    const std::vector<Extent*> extents = allocations_.extents_of(chosen.tags);
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
        extent->leaving = wishes.way_of(*extent).leaving;
        if (extent->leaving == Leaving::stage) staged.push_back(extent);
    }
    memory_.stop_preparing(extents);
    Status status =
        made->times.for_host_memory([&] { return memory_.reserve(allocations_.extents(), staged, wishes, &taken); });
    if (status.ok()) {
        made->unchanged_bytes = made->times.for_comparison(
            [&] { return choose_copies(device_->backend(), extents, wishes.copy_all, passage_.stream_to_host()); });
        // Not before: the system holds up what the comparison asks the driver for while memory becomes present.
        status = made->times.for_host_memory([&] { return memory_.begin_fill(staged); });
    }
    if (!status.ok()) {
        for (Extent* const extent : taken) extent->drop_host_memory();
        return status;
    }
    const Status left = passage_.leave(extents, memory_.fill());
    memory_.fill().stop();
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
    allocations_.retry_retired();
    ChosenTags chosen;
    SH_TRY(tags_.select(selection, SH_OCCUPANCY_RELEASED, &chosen));
    const std::vector<const char*> names = chosen.names();
    const uint64_t began = device_->backend().now_ns(), held = allocations_.totals().held_bytes;
    const Carried before = passage_.carried();
    tags_.set_state(chosen, SH_OCCUPANCY_RESUMING);
    const CallTimes times(device_->backend(), allocations_.totals(), passage_);
    uint64_t runtime_bytes = 0;
    const Status status =
        device_->retry_after_loans([&] { return no_throw([&] { return bring_back(chosen, &runtime_bytes); }); });
    if (!status.ok()) allocations_.settle();
    tags_.count(allocations_.extents());
    tags_.set_state(chosen, status.ok() ? SH_OCCUPANCY_RUNNING : SH_OCCUPANCY_RELEASED);
    SH_TRY(status);
    tags_.note_cycle(chosen);
    callbacks_.after_resume(names);
    out->tag_count = chosen.count();
    out->device_bytes = allocations_.totals().held_bytes - held + runtime_bytes;
    out->unchanged_bytes = 0;
    tell(true, names, began, before, times, out);
    log_line(SH_LOG_INFO, "%s: %s were taken, %s of contents came back", device_->name().c_str(),
             size_text(out->device_bytes).c_str(), size_text(out->copied_bytes).c_str());
    return Status();
}

// Runtimes take their memory beside what is claimed for the rest, and load nothing before the rest is there: it may
// have their sources.
Status Occupancy::bring_back(const ChosenTags& chosen, uint64_t* out_runtime_bytes) {
    SH_TRY(passage_.settle());
    const std::vector<Extent*> extents = allocations_.extents_of(chosen.tags);
    uint64_t missing = 0;
    for (const Extent* const extent : extents) missing += extent->missing_bytes();
    if (missing) SH_TRY(allocations_.claim(missing));
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

}  // namespace stagehand::core
