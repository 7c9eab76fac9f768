// ContentMemory: the host memory and the files for contents of sh_alloc(): its preparation in the background, its
// reservation in a pause, and its end.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "core/device/device.h"
#include "core/occupancy/extent.h"
#include "core/occupancy/passage.h"
#include "core/occupancy/tags.h"
#include "core/occupancy/wishes.h"
#include "transfer/host/host_fill.h"

namespace stagehand::core {

// One caller at a time.
class ContentMemory {
public:
    ContentMemory(Device& device, Tags& tags, Passage& passage)
        : device_(device), tags_(tags), passage_(passage), fill_(device.backend()) {}

    // Reserves what is missing for extents that are staged. There is room for all of it when the first contents leave.
    // `out_taken`: those that got new memory, also on failure.
    Status reserve(const Extents& all, const std::vector<Extent*>& leaving, const PauseWishes& wishes,
                   std::vector<Extent*>* out_taken);
    // Begins to make the reserved memory of these extents ready, as far as it is not.
    Status begin_fill(std::vector<Extent*> extents);
    transfer::HostFill& fill() { return fill_; }

    // Begins to reserve and to make ready in the background what a pause of these extents needs.
    Status prepare(const Extents& all, const std::vector<Extent*>& leaving, const PauseWishes& wishes);
    // The memory of these extents is not prepared any more. What is ready stays.
    void stop_preparing(std::span<Extent* const> extents) noexcept;
    void go_on_preparing() noexcept;
    // Drops what keeps no contents. Returns its bytes.
    uint64_t trim(const Extents& all);

private:
    Status prepare_more(const Extents& all, const std::vector<Extent*>& leaving, const PauseWishes& wishes,
                        std::vector<Extent*>* wanted);
    bool packs(const std::vector<Extent*>& extents, const PauseWishes& wishes);

    Device& device_;
    Tags& tags_;
    Passage& passage_;
    transfer::StagingFiles files_;
    std::vector<Extent*> preparing_;  // whose host memory is pinned in the background, or waits for its turn
    transfer::HostFill fill_;         // its thread tells the tags. The destructor ends it first
};

}  // namespace stagehand::core
