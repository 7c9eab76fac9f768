// KindHistory: which kinds of step an engine has made, in which turn, and which of them it will make again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace stagehand::policy {

// Kinds are numbers below kMostKinds. A run is some steps of one kind in a row. The last runs are kept.
class KindHistory {
public:
    static constexpr uint32_t kMostKinds = 8;

    // The engine has made a step of this kind. Allocates nothing.
    void saw(uint32_t kind) noexcept;
    // The number stands for another kind from now on.
    void forget(uint32_t kind) noexcept;
    void clear() noexcept { *this = {}; }

    // The kinds that alternate, as bits. A kind that has come for the first time stands alone until another kind comes
    // again, because the engine may have changed for good. Kinds that have not come for long do not count.
    uint32_t active() const noexcept;
    // The kinds that have come not long ago, as bits, whether they alternate or not.
    uint32_t recent() const noexcept;
    // The steps of the kind in the runs that are kept. The present run is not over, and so it counts as long as the
    // mean of the others.
    double steps_of(uint32_t kind) const noexcept;
    // The number of steps in which no other than the active kinds came.
    uint64_t stable_for() const noexcept;
    // How often the kind's runs, and its steps in the present run, have come.
    uint32_t runs_of(uint32_t kind) const noexcept;
    uint64_t steps_in_a_row() const noexcept { return count_ ? runs_[count_ - 1].steps : 0; }
    // The kind that will probably come next, by what has followed the present one most often. kMostKinds: unknown.
    uint32_t expected() const noexcept;

private:
    struct Run {
        uint32_t kind = 0;
        uint64_t began = 0, steps = 0;
    };
    bool is_stale(uint32_t kind) const noexcept;

    static constexpr size_t kRuns = 32;
    std::array<Run, kRuns> runs_ = {};  // the first count_, oldest first
    size_t count_ = 0;
    uint64_t steps_ = 0;
    std::array<std::array<uint16_t, kMostKinds>, kMostKinds> followed_ = {};
};

}  // namespace stagehand::policy
