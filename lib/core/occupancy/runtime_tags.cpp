#include "core/occupancy/runtime_tags.h"

#include <algorithm>

#include "base/log.h"

namespace stagehand::core {
namespace {

void add_runtime(const Pausable::Figures& from, sh_occupancy_info* to) {
    if (to->state != from.state) to->state = SH_OCCUPANCY_MIXED;
    to->allocations += from.blocks;
    to->bytes += from.bytes;
    to->device_bytes += from.device_bytes;
    to->cycles += from.cycles;
}

}  // namespace

std::vector<sh_occupancy_info> RuntimeTags::infos() const {
    std::vector<sh_occupancy_info> all;
    runtimes_.each([&](const Pausable& runtime) {
        const std::string& tag = runtime.pause_tag();
        auto at = std::lower_bound(all.begin(), all.end(), tag,
                                   [](const sh_occupancy_info& a, const std::string& b) { return a.tag < b; });
        const Pausable::Figures figures = runtime.pause_figures();
        if (at == all.end() || at->tag != tag) {
            auto info = sh_sized<sh_occupancy_info>();
            info.state = figures.state;
            tag.copy(info.tag, sizeof info.tag - 1);
            at = all.insert(at, info);
        }
        add_runtime(figures, &*at);
    });
    return all;
}

Status RuntimeTags::info(std::string_view tag, sh_occupancy_info* out) const {
    for (const sh_occupancy_info& info : infos()) {
        if (info.tag != tag) continue;
        *out = info;
        return Status();
    }
    return Status(SH_ERROR_NOT_FOUND, "there is no runtime with the tag \"" + std::string(tag) + "\" on the device");
}

// --- Changes ---

std::vector<Pausable*> RuntimeTags::Change::find(std::span<const std::string> tags, uint32_t state) const {
    std::vector<Pausable*> found;
    for (const std::string& tag : tags)
        runtimes_.each([&](Pausable& runtime) {
            if (runtime.pause_tag() == tag && runtime.pause_figures().state == state) found.push_back(&runtime);
        });
    return found;
}

Status RuntimeTags::Change::release(std::span<const std::string> tags) {
    const std::vector<Pausable*> all = find(tags, SH_OCCUPANCY_RUNNING);
    changed_.reserve(all.size());
    for (Pausable* const runtime : all) {
        const uint64_t held = runtime->pause_figures().device_bytes;
        if (const Status status = runtime->release_memory(); !status.ok()) {
            const Status back = undo_release();
            return back.ok() ? status : status.within(back.text());
        }
        changed_.push_back(runtime);
        bytes_ += held;
    }
    return Status();
}

Status RuntimeTags::Change::undo_release() {
    Status status;
    for (Pausable* const runtime : changed_) {
        if (const Status taken = runtime->take_memory(); !taken.ok())
            status = taken.within("the tag \"" + runtime->pause_tag() + "\" stays released");
        else
            runtime->run();
    }
    changed_.clear();
    bytes_ = 0;
    return status;
}

Status RuntimeTags::Change::take(std::span<const std::string> tags) {
    const std::vector<Pausable*> all = find(tags, SH_OCCUPANCY_RELEASED);
    changed_.reserve(all.size());
    for (Pausable* const runtime : all) {
        if (const Status status = runtime->take_memory(); !status.ok()) {
            undo_take();
            return status.within("the tag \"" + runtime->pause_tag() + "\" cannot be resumed, so none of this call is");
        }
        changed_.push_back(runtime);
    }
    return Status();
}

// Nothing in the memory is newer than its source, because the engine could not use it.
void RuntimeTags::Change::undo_take() noexcept {
    for (Pausable* const runtime : changed_) {
        const Status released = runtime->release_memory();
        if (released.ok()) continue;
        log_line(SH_LOG_WARNING, "%s runs, although a resume failed: %s", runtime->pause_tag().c_str(),
                 released.text());
        runtime->run();
    }
    changed_.clear();
    bytes_ = 0;
}

void RuntimeTags::Change::run() noexcept {
    bytes_ = 0;  // some may have made way for others
    for (Pausable* const runtime : changed_) {
        bytes_ += runtime->pause_figures().device_bytes;
        runtime->run();
    }
}

}  // namespace stagehand::core
