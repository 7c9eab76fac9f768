// StepMix: the kinds of step that a plan is made for, with their orders, times and turns.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/mix.h"

namespace stagehand::core {

struct StepMix {
    std::vector<uint32_t> kinds;   // serial numbers (kinds.h), in the order of `traces`
    std::vector<uint32_t> orders;  // the number of each kind's order
    std::vector<std::vector<policy::Use>> traces;
    std::vector<policy::Visit> cycle;              // names kinds by their places in `traces`
    std::vector<std::vector<policy::Use>> others;  // orders outside the mix that a plan has to be able to run

    bool empty() const { return traces.empty(); }
    policy::Mix view() const { return {traces, cycle, others}; }
    // The part of the steps that are of this kind.
    double weight(size_t place) const {
        uint64_t own = 0, all = 0;
        for (const policy::Visit& visit : cycle) {
            all += visit.steps;
            if (visit.kind == place) own += visit.steps;
        }
        return all ? static_cast<double>(own) / static_cast<double>(all) : 0;
    }
    static uint64_t compute_ns(const std::vector<policy::Use>& trace) {
        uint64_t sum = 0;
        for (const policy::Use& use : trace) sum += use.compute_ns;
        return sum;
    }
};

}  // namespace stagehand::core
