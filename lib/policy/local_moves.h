// LocalMoves: small random changes to a plan, from a fixed seed. They find plans that the families miss.
#pragma once

#include <cstdint>
#include <random>

#include "policy/evaluator.h"
#include "policy/frontier.h"
#include "policy/shape.h"

namespace stagehand::policy {

class LocalMoves {
public:
    LocalMoves(const Shape& shape, Evaluator& evaluator, Frontier& frontier)
        : shape_(shape), evaluator_(evaluator), frontier_(frontier) {}

    // Looks for a shorter step, starting from the fastest known candidate.
    void shorten(uint64_t evaluations);

    // Looks for fewer bytes, starting from the leanest known candidate. The step never exceeds the frontier's limit.
    void slim(uint64_t evaluations);

private:
    void scatter(Candidate& candidate);
    void descend(Found current, uint64_t evaluations);
    bool change(Candidate& candidate, bool slimmer);
    bool shift(Candidate& candidate, uint32_t unit, int64_t pages);
    void undo(Candidate& candidate);
    int64_t some_pages(uint32_t unit);
    // The distributions of the standard library differ between implementations, and plans must not.
    uint32_t below(uint32_t bound) { return static_cast<uint32_t>(uint64_t{random_()} * bound >> 32); }

    const Shape& shape_;
    Evaluator& evaluator_;
    Frontier& frontier_;
    std::mt19937 random_{20240229};

    // The values that the last change replaced.
    struct {
        uint32_t unit[2], part[2];
        int units = 0;
        uint32_t ring = 0;
        Layout layout = Layout::packed;
    } before_;
};

}  // namespace stagehand::policy
