// Gate: who is inside a runtime, what they are at, and whether it can be used. Every wait of a call goes through it or is announced to it,
// by guards, so that an exception leaves nothing raised.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include <stagehand/telemetry.h>

#include "base/status.h"
#include "core/memory/block.h"

namespace stagehand::core {

using Lock = std::unique_lock<std::mutex>;

// All methods are called with the runtime's mutex held. It belongs to the handle's slot and outlives the runtime.
class Gate {
public:
    enum class Phase : uint8_t {
        open,
        lost,      // device memory cannot be trusted any more: it can only be destroyed
        closing,
    };

    Gate(std::mutex& mutex, std::string name, sh_runtime_stats& stats) : mutex_(mutex), name_(std::move(name)), stats_(stats) {}

    std::mutex& mutex() { return mutex_; }
    std::condition_variable& changed() { return changed_; }
    const std::string& name() const { return name_; }
    std::string title() const { return "runtime \"" + name_ + "\""; }   // in texts

    bool closing() const { return phase_ == Phase::closing; }
    bool lost() const { return phase_ == Phase::lost; }
    bool is_open() const { return phase_ == Phase::open; }
    Status usable() const;
    // A failure after which device memory cannot be trusted ends the runtime.
    Status note(Status status);
    // Makes callers that wait give up, and waits until they have.
    void close(Lock& lock);

    // Gives the mutex up until `condition` holds.
    template <class Condition>
    void wait(Lock& lock, Condition&& condition) {
        changed_.wait(lock, condition);
    }
    void notify() { changed_.notify_all(); }

    // Views that are held, and whether a step is under way.
    uint32_t views() const { return views_; }
    void view_taken() { views_++; }
    void view_ended() { views_--; }
    bool in_step() const { return in_step_; }
    void begin_step() { in_step_ = true; }
    void end_step() { in_step_ = false; }
    // No call waits inside.
    bool is_empty() const { return inside_ == 0; }
    // Nobody uses it, so that its plan may be changed for others' sake.
    bool is_idle() const { return phase_ == Phase::open && !in_step_ && !views_ && !inside_; }

    // The plan is being changed, and the mutex was given up meanwhile: who comes from outside, or has not begun to bring a unit, waits first.
    bool changing() const { return changing_; }
    uint32_t bringings() const { return bringings_; }   // units that are being brought

    // A call that may give up the mutex on its way, for as long as this lives: close() waits for it.
    class Inside {
    public:
        explicit Inside(Gate& gate) : gate_(gate) { gate_.inside_++; }
        ~Inside();
        Inside(const Inside&) = delete;
        Inside& operator=(const Inside&) = delete;

    private:
        Gate& gate_;
    };

    // The caller sees to a unit's load, for as long as this lives: others who want it wait, and so do changes of the plan.
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

    // The plan changes, for as long as this lives.
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
    sh_runtime_stats& stats_;
    Phase phase_ = Phase::open;
    bool in_step_ = false;
    bool changing_ = false;
    uint32_t views_ = 0;
    uint32_t inside_ = 0;
    uint32_t bringings_ = 0;
};

}  // namespace stagehand::core
