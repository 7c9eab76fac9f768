// Lane: a stream of a device that copies take in one direction. Lanes: all lanes of a device, which lends them.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"

namespace stagehand::transfer {

enum class Direction : uint8_t { to_device, to_host };

class Lanes;

// A lane is lent until it is destroyed. Copies on it may still run at that time: the copies of the next borrower run
// after them. Not thread-safe.
class Lane {
public:
    Lane() = default;
    ~Lane() { give_back(); }
    Lane(Lane&& other) noexcept { *this = static_cast<Lane&&>(other); }
    Lane& operator=(Lane&& other) noexcept;

    bool is_open() const { return owner_ != nullptr; }
    sh_stream stream() const { return stream_; }
    Direction direction() const { return direction_; }

private:
    friend class Lanes;
    void give_back() noexcept;

    Lanes* owner_ = nullptr;
    sh_stream stream_ = SH_STREAM_HOST;
    Direction direction_ = Direction::to_device;
};

// Each device has one. It must outlive the lanes that it lends. Thread-safe.
class Lanes {
public:
    explicit Lanes(BackendDevice& device) : device_(device) {}
    ~Lanes();
    Lanes(const Lanes&) = delete;
    Lanes& operator=(const Lanes&) = delete;

    // Lends a lane that is idle, or makes a new lane.
    Status lend(Direction direction, Lane* out);

    // The rate of all lanes of a direction together, in bytes per nanosecond. 0 if the rate is not known.
    void set_rate(Direction direction, double bytes_per_ns);
    double rate(Direction direction) const;

private:
    friend class Lane;
    struct Idle {
        std::vector<sh_stream> streams;
        size_t lent = 0;  // streams has room for these, so that giving a lane back allocates nothing
    };

    Idle& idle(Direction direction) { return idle_[static_cast<size_t>(direction)]; }
    void give_back(sh_stream stream, Direction direction) noexcept;
    bool can_be_lent(sh_stream stream);
    void destroy(sh_stream stream) noexcept;

    BackendDevice& device_;
    mutable std::mutex mutex_;
    Idle idle_[2];
    double rates_[2] = {0, 0};
};

}  // namespace stagehand::transfer
