// Passage: moves contents of extents to host memory and back. Device memory goes back to the driver while later
// contents are copied, and is taken and mapped while earlier contents are copied.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/device/copy_lane.h"
#include "core/occupancy/extent.h"
#include "transfer/host/ferry.h"
#include "transfer/host/host_fill.h"

namespace stagehand::core {

// What a passage has moved.
struct Carried {
    uint64_t bytes = 0;
    uint64_t packed = 0;  // the part of them that crossed the link packed
};

// One caller at a time.
class Passage {
public:
    // Is told of contents of an extent that have come back.
    using Arrived = std::function<void(Extent& extent, uint64_t bytes)>;

    Passage(Device& device, Arrived arrived)
        : device_(device.backend()),
          arrived_(std::move(arrived)),
          to_host_(device, transfer::Direction::to_host),
          to_device_(device, transfer::Direction::to_device),
          ferry_(device.backend()) {}
    ~Passage();
    Passage(const Passage&) = delete;
    Passage& operator=(const Passage&) = delete;

    // Borrows lanes, which are kept. May be repeated after a failure.
    Status open();

    // Where the copies to host memory are queued.
    sh_stream stream_to_host() const { return to_host_.stream(); }
    // Copies the pages of those extents that are staged, as Page::copied says, and gives their device memory back.
    // Packs what may be packed, if the device can.
    // Nothing else uses the memory. Waits for the host memory that `fill` still prepares. On failure nothing is copied
    // any more, and each handle is either filled or its contents are in host memory.
    Status leave(std::span<Extent* const> extents, transfer::HostFill& fill);
    // Takes device memory for all handles that are not filled, and fills them. On failure these handles are not filled,
    // the device memory that the call took is given back, and host memory keeps its contents. The extents come in their
    // order.
    Status come_back(std::span<Extent* const> extents);

    // Whether the device packs. Tries it until that has succeeded once, or the device cannot. The passage is open, and
    // nothing is queued: the trial waits for the device.
    bool packs();

    // Frees the buffers for contents that copies of the device do not reach. No contents are on their way.
    void free_buffers() noexcept { ferry_.close(); }

    // If not, a copy may be under way, and the driver cannot tell when it ends. Until settle() has succeeded, host
    // memory must not be freed.
    bool is_settled() const { return to_host_.is_settled() && to_device_.is_settled(); }
    Status settle() { return is_settled() ? Status() : end_copies(); }

    const Carried& carried() const { return carried_; }  // since the passage was opened
    uint64_t wait_ns() const { return wait_ns_; }        // for copies, since then

private:
    static constexpr size_t kAhead = 8;  // handles whose copies are queued

    struct Move {
        Extent* extent = nullptr;
        Handle* handle = nullptr;
        Carried carried = {};
        CopyLane* lane = nullptr;
        transfer::Trip trip = 0;
    };

    Status copy_out(Extent& extent, Handle& handle, transfer::HostFill& fill);
    Status copy_back(Extent& extent, Handle& handle);
    Status carry(Extent& extent, const Page& first, uint64_t bytes, bool leaves);
    Status choose_packing(Extent& extent, std::span<Page> pages, transfer::HostFill& fill);
    Status copy_packed(CopyLane& lane, const Extent& extent, const Page& first, uint64_t bytes);
    static bool is_to_leave(const Page& page) { return page.used && page.copied; }
    static bool is_to_come(const Page& page) { return page.used; }
    template <class Wanted, class Copy>
    Status in_pieces(std::span<const Page> pages, Wanted&& wanted, Copy&& copy);
    Status note_end(Move move, CopyLane& lane);
    Status end_copies();
    Status wait_for_oldest();
    Status finish_oldest_arrival();
    Status finish_oldest_departure();
    Status finish_departure(const Move& move);
    template <class Work>
    Status attempt(Work&& work);
    Status empty_all(std::span<Extent* const> extents, transfer::HostFill& fill);
    Status fill_all(std::span<Extent* const> extents, std::vector<Move>& taken);
    void give_back(const std::vector<Move>& taken) noexcept;

    BackendDevice& device_;
    const Arrived arrived_;
    CopyLane to_host_, to_device_;
    Move moves_[kAhead];
    transfer::Ferry::Group groups_[kAhead];  // what the moves have on the ferry
    transfer::Ferry ferry_;
    size_t first_ = 0, count_ = 0;  // of the moves that are queued, in a circle
    Carried carried_, queued_;      // the latter: of the move that is queued next
    uint64_t wait_ns_ = 0;
    std::optional<bool> packs_;  // whether the device does, once somebody has asked
};

}  // namespace stagehand::core
