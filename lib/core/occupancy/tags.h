// Tags: the tags of a device, and what each of them holds. Runtimes have tags, too.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/device/device.h"
#include "core/occupancy/runtime_tags.h"
#include "core/occupancy/tag.h"
#include "core/occupancy/wishes.h"

namespace stagehand::core {

// What a pause or a resume is about.
struct ChosenTags {
    std::vector<Tag*> tags;
    std::vector<std::string> runtimes;  // tags of runtimes

    std::vector<const char*> names() const;
    uint32_t count() const { return static_cast<uint32_t>(tags.size() + runtimes.size()); }
};

// One caller at a time changes the tags. Any thread may ask for the figures, and note what becomes ready or arrives.
class Tags {
public:
    explicit Tags(Device& device) : device_(device), runtimes_(device.pausables()) {}

    // These never wait for a call that changes something.
    Status info(const char* name, sh_occupancy_info* out) const;
    std::vector<sh_occupancy_info> list() const;

    const std::map<std::string, Tag>& all() const { return tags_; }
    Tag& get(const std::string& name, bool* out_is_new);
    void remove(const std::string& name);
    // Finds the tags of a selection that are in the wanted state: running for a pause, released for a resume.
    Status select(const TagSelection& selection, uint32_t wanted, ChosenTags* out);

    void set_state(const ChosenTags& chosen, uint32_t state);
    void note_cycle(const ChosenTags& chosen);
    void note_allocation(Tag& tag, uint64_t bytes, bool is_there);
    void note_opened(const Extent& extent);
    void note_removed(const Extent& extent) noexcept;
    // Contents have arrived, before count() counts anew.
    void note_arrived(const Extent& extent, uint64_t bytes);
    // The next piece of its host memory is ready.
    void note_ready(Extent& extent, bool pinned);
    // Counts anew what the tags hold.
    void count(const Extents& extents) noexcept;

private:
    void add(const Extent& extent, bool is_there) noexcept;
    Status select_one(const char* name, uint32_t wanted, bool repeat, ChosenTags* out);

    Device& device_;
    const RuntimeTags runtimes_;
    // Guards the names, Tag::info, and what is ready of host memory. Whoever changes tags may read them without it.
    mutable std::mutex mutex_;
    std::map<std::string, Tag> tags_;
    uint64_t pinned_bytes_ = 0;  // of host memory
};

}  // namespace stagehand::core
