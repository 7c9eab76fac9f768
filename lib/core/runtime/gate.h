// Gate: counts the calls inside a runtime and what they are doing, and knows whether the runtime can be used. Each wait
// of a call goes through the gate or is announced to it. Guards do that, so that an exception leaves no count raised.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>

#include <stagehand/occupancy.h>
#include <stagehand/telemetry.h>

#include "base/status.h"
#include "core/memory/registry.h"
#include "core/runtime/users.h"

namespace stagehand::core {

using Lock = std::unique_lock<std::mutex>;

// The caller holds the runtime's mutex in all methods. The mutex belongs to the handle's slot and outlives the runtime.
class Gate {
public:
    enum class Phase : uint8_t {
        open,
        lost,  // device memory cannot be trusted any more: the runtime can only be destroyed
        closing,
    };

    Gate(std::mutex& mutex, std::string name) : mutex_(mutex), name_(std::move(name)) {
        stats_.struct_size = sizeof stats_;
    }

    std::mutex& mutex() { return mutex_; }
    std::condition_variable& changed() { return changed_; }
    const std::string& name() const { return name_; }
    std::string title() const { return "runtime \"" + name_ + "\""; }  // for messages

    sh_runtime_stats& stats() { return stats_; }
    const sh_runtime_stats& stats() const { return stats_; }

    bool closing() const { return phase_ == Phase::closing; }
    bool lost() const { return phase_ == Phase::lost; }
    bool is_open() const { return phase_ == Phase::open && !is_away(); }
    Status usable() const;
    Status unknown_block(sh_block id) const;
    // An error if one of them is not a block of the runtime.
    Status check_blocks(Registry& registry, std::span<const sh_block> ids) const;
    // For calls that need device memory: a pause may have taken it.
    Status running() const;

    // Whether a pause has the memory: SH_OCCUPANCY_*. Any thread may read it.
    uint32_t occupancy() const { return occupancy_.load(std::memory_order_relaxed); }
    void set_occupancy(uint32_t state) {
        if (!lost()) occupancy_.store(state, std::memory_order_relaxed);
    }
    bool is_away() const { return occupancy() == SH_OCCUPANCY_RELEASED || occupancy() == SH_OCCUPANCY_RESUMING; }
    // Marks the runtime as lost if the failure means that device memory cannot be trusted any more. Returns the status.
    Status note(Status status);
    // Makes waiting callers give up, and waits until they have left.
    void close(Lock& lock);

    // Gives the mutex up until `condition` holds.
    template <class Condition>
    void wait(Lock& lock, Condition&& condition) {
        changed_.wait(lock, condition);
    }
    void notify() { changed_.notify_all(); }

    // What the engine does with the runtime: the views that it holds, its step, its capture, and a graph that it has
    // entered.
    uint32_t views() const { return views_.count(); }
    void view_taken() { views_.come(); }
    void view_ended() { views_.go(); }
    bool in_step() const { return steps_.count(); }
    void step_begins() { steps_.come(); }
    void step_ends() { steps_.go(); }
    // SH_ERROR_INVALID_STATE during a step, and while views are held. `what`: that the runtime cannot do then.
    Status at_edge(const char* what) const;
    bool capturing() const { return captures_.count(); }
    Status no_capture() const;  // SH_ERROR_INVALID_STATE while a capture is under way
    void capture_begins() { captures_.come(); }
    void capture_ends() { captures_.go(); }
    bool in_graph() const { return launches_.count(); }
    void graph_entered() { launches_.come(); }
    void graph_left() { launches_.go(); }
    // Whether it does nothing of that. SH_ERROR_INVALID_STATE if it does, and the calling thread has to end it, else
    // SH_ERROR_BUSY.
    Status unused() const;
    // No call is inside the runtime.
    bool is_empty() const { return inside_ == 0; }
    // Nobody uses the runtime. Its plan may then be changed for the sake of other runtimes.
    bool is_idle() const {
        return phase_ == Phase::open && occupancy() != SH_OCCUPANCY_RELEASED && !in_step() && !views() && !inside_;
    }

    // The plan is being changed, and the mutex was given up meanwhile. A call from outside waits until the change has
    // ended. A call inside that has not begun to load a unit waits as well.
    bool changing() const { return changing_; }
    uint32_t bringings() const { return bringings_; }  // loads that callers are seeing to

    // Marks a call that may give up the mutex. close() waits for it while this object lives.
    class Inside {
    public:
        explicit Inside(Gate& gate) : gate_(gate) { gate_.inside_++; }
        ~Inside();
        Inside(const Inside&) = delete;
        Inside& operator=(const Inside&) = delete;

    private:
        Gate& gate_;
    };

    // Marks the unit whose load the caller is seeing to. While this object lives, other callers who want the unit wait,
    // and changes of the plan wait too.
    class Bringing {
    public:
        Bringing(Gate& gate, Unit& unit);
        ~Bringing();
        Bringing(const Bringing&) = delete;
        Bringing& operator=(const Bringing&) = delete;

    private:
        Gate& gate_;
        Unit& unit_;
    };

    // Marks that the plan is being changed, while this object lives.
    class ClosedDoor {
    public:
        explicit ClosedDoor(Gate& gate) : gate_(gate) { gate_.changing_ = true; }
        ~ClosedDoor();
        ClosedDoor(const ClosedDoor&) = delete;
        ClosedDoor& operator=(const ClosedDoor&) = delete;

    private:
        Gate& gate_;
    };

private:
    std::mutex& mutex_;
    std::condition_variable changed_;
    const std::string name_;
    sh_runtime_stats stats_ = {};
    Phase phase_ = Phase::open;
    std::atomic<uint32_t> occupancy_{SH_OCCUPANCY_RUNNING};
    bool changing_ = false;
    Users views_, steps_, captures_, launches_;
    uint32_t inside_ = 0;
    uint32_t bringings_ = 0;
};

}  // namespace stagehand::core
