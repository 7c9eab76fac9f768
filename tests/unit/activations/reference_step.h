// A slow simulation of a training step for the tests, straight from the words of activation_plan.h. Only the order of
// the events comes from the library. Every figure is summed up anew whenever it is needed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "activations/timeline.h"

namespace stagehand::activations::test {

class ReferenceStep {
public:
    ReferenceStep(const ActivationTimeline& timeline, std::span<const Fate> fates, uint64_t target)
        : timeline_(timeline), step_(*timeline.step), fates_(fates), target_(static_cast<int64_t>(target)) {
        states_.resize(timeline.storages());
        for (uint32_t i = 0; i < states_.size(); i++) {
            states_[i].need = timeline.first_use[i];
            states_[i].freed = timeline.last_use[i];
        }
        // As often as there are storages, so that chains of any length are followed to their end.
        for (size_t round = 0; round < states_.size(); round++)
            for_each_input([&](const State& user, State& input) { input.need = std::min(input.need, user.need); });
        for_each_input([&](const State& user, State& input) { input.freed = std::max(input.freed, user.need); });
        for (uint32_t i : timeline.consumers_first)
            if (fates[i] == Fate::spill) restores_.push_back(i);
        std::reverse(restores_.begin(), restores_.end());
        std::stable_sort(restores_.begin(), restores_.end(),
                         [&](uint32_t a, uint32_t b) { return states_[a].need < states_[b].need; });
    }

    ActivationCost run() {
        double shift = 0;
        for (place_ = 0; place_ < timeline_.events.size(); place_++) {
            const StepEvent& event = timeline_.events[place_];
            now_ = std::max(now_, static_cast<double>(event.ns) + shift);
            while (start_restore(now_)) {
            }
            settle(now_);
            happen(event);
            shift = now_ - static_cast<double>(event.ns);
            since_ = now_;
        }
        cost_.step_ns = static_cast<double>(step_.end_ns) + shift;
        return cost_;
    }

private:
    struct State {
        uint32_t need = 0, freed = 0;  // events
        bool here = false;             // takes memory on the device
        bool in_forward = false;
        double copied = std::numeric_limits<double>::infinity();
        bool copy_ended = false;
        bool used = false;
        double restored = 0;
    };

    template <typename Look>
    void for_each_input(Look look_at) {
        for (uint32_t i = 0; i < states_.size(); i++)
            for (uint32_t input : step_.storages[i].inputs)
                if (fates_[i] == Fate::recompute && states_[i].need > timeline_.released[input])
                    look_at(states_[i], states_[input]);
    }

    int64_t bytes(uint32_t i) const { return static_cast<int64_t>(step_.storages[i].bytes); }
    int64_t memory() const {
        int64_t sum = others_;
        for (uint32_t i = 0; i < states_.size(); i++) sum += states_[i].here ? bytes(i) : 0;
        return sum;
    }
    void look() { cost_.peak_bytes = std::max(cost_.peak_bytes, static_cast<uint64_t>(memory())); }

    // The least memory just after an event: what is certainly on the device.
    int64_t level(uint32_t place) const {
        int64_t sum = 0;
        for (uint32_t p = 0; p <= place; p++)
            if (timeline_.events[p].moment == StepMoment::others_change)
                sum = static_cast<int64_t>(step_.others[timeline_.events[p].index].bytes);
        for (uint32_t i = 0; i < states_.size(); i++) {
            const State& state = states_[i];
            const bool own_last = state.freed == timeline_.last_use[i];
            const bool freed = own_last ? place >= state.freed : place > state.freed;
            const bool forward = timeline_.produced[i] <= place && place < timeline_.released[i];
            const bool from_need = place >= (fates_[i] == Fate::keep ? timeline_.produced[i] : state.need);
            if (forward || (from_need && !freed)) sum += bytes(i);
        }
        return sum;
    }

    void settle(double by) {
        for (uint32_t i = 0; i < states_.size(); i++) {
            State& state = states_[i];
            if (state.copy_ended || state.copied > by) continue;
            state.copy_ended = true;
            if (!state.in_forward) state.here = false;
        }
    }
    double next_copy_end() const {
        double next = std::numeric_limits<double>::infinity();
        for (const State& state : states_)
            if (!state.copy_ended) next = std::min(next, state.copied);
        return next;
    }
    bool wait_for_copy() {
        if (next_copy_end() == std::numeric_limits<double>::infinity()) return false;
        now_ = std::max(now_, next_copy_end());
        settle(now_);
        return true;
    }
    void make_room(int64_t more) {
        while (more > 0 && memory() + more > target_ && wait_for_copy()) {
        }
    }
    uint64_t in_flight() const {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < states_.size(); i++)
            if (!states_[i].copy_ended && states_[i].copied < std::numeric_limits<double>::infinity())
                sum += step_.storages[i].bytes;
        return sum;
    }
    double copy_ns(uint32_t i, const LinkRate& rate) const {
        return static_cast<double>(step_.copy_latency_ns) +
               static_cast<double>(bytes(i)) / (rate.bytes_per_ns - rate.weight_bytes_per_ns);
    }

    // Whether the next restore fits from the event at `from` until its need, beside those before it.
    bool fits(size_t restore, uint32_t from) const {
        for (uint32_t place = from; place < states_[restores_[restore]].need; place++) {
            int64_t sum = level(place);
            for (size_t r = 0; r <= restore; r++)
                if (states_[restores_[r]].need > place) sum += bytes(restores_[r]);
            if (sum > target_) return false;
        }
        return true;
    }
    bool may_start(size_t restore) const {
        if (place_ == 0 || timeline_.forward_end > place_ - 1) return false;
        uint64_t ahead = 0;
        for (size_t r = 0; r < restore; r++)
            ahead += states_[restores_[r]].used ? 0 : step_.storages[restores_[r]].bytes;
        if (ahead > 0 && ahead + step_.storages[restores_[restore]].bytes > step_.ahead_bytes) return false;
        return fits(restore, place_ - 1);
    }
    bool start_restore(double by, bool must = false) {
        if (started_ == restores_.size() || (!must && !may_start(started_))) return false;
        const uint32_t i = restores_[started_];
        double start = std::max({to_device_, since_, states_[i].copied});
        if (start > by) return false;
        settle(start);
        while (memory() + bytes(i) > target_) {
            const double next = next_copy_end();
            if (next > by || next == std::numeric_limits<double>::infinity()) {
                if (!must) return false;
                break;
            }
            start = std::max(start, next);
            settle(start);
        }
        states_[i].here = true;
        look();
        to_device_ = states_[i].restored = start + copy_ns(i, step_.to_device);
        started_++;
        return true;
    }

    void happen(const StepEvent& event) {
        const uint32_t i = event.index;
        if (event.moment == StepMoment::others_change) {
            const int64_t more = static_cast<int64_t>(step_.others[i].bytes) - others_;
            make_room(more);
            others_ += more;
            look();
        } else if (event.moment == StepMoment::produced) {
            if (fates_[i] == Fate::spill)
                while (in_flight() > 0 && in_flight() + step_.storages[i].bytes > step_.in_flight_bytes)
                    wait_for_copy();
            make_room(bytes(i));
            states_[i].here = states_[i].in_forward = true;
            look();
            if (fates_[i] == Fate::spill) {
                to_host_ = states_[i].copied = std::max(to_host_, now_) + copy_ns(i, step_.to_host);
                cost_.spilled_bytes += step_.storages[i].bytes;
            }
        } else if (event.moment == StepMoment::released) {
            states_[i].in_forward = false;
            if (fates_[i] == Fate::recompute || states_[i].copy_ended) states_[i].here = false;
        } else if (event.moment == StepMoment::first_use) {
            use();
        } else if (event.moment != StepMoment::forward_end && states_[i].freed == place_) {
            states_[i].here = false;
        }
    }

    void use() {
        double recompute_ns = 0;
        std::vector<uint32_t> needed;
        for (uint32_t i : timeline_.consumers_first)
            if (states_[i].need == place_) needed.insert(needed.begin(), i);
        for (uint32_t i : needed) {
            if (fates_[i] == Fate::spill) {
                while (states_[i].restored == 0) start_restore(std::numeric_limits<double>::infinity(), true);
                now_ = std::max(now_, states_[i].restored);
                states_[i].used = true;
                settle(now_);
            } else if (fates_[i] == Fate::recompute) {
                make_room(bytes(i));
                states_[i].here = true;
                look();
                recompute_ns += static_cast<double>(step_.storages[i].recompute_ns);
                cost_.recomputed_bytes += step_.storages[i].bytes;
            }
        }
        if (recompute_ns > 0) {
            since_ = now_;
            place_++;  // restores may start now, after this event
            while (start_restore(now_ + recompute_ns)) {
            }
            place_--;
            now_ += recompute_ns;
            settle(now_);
            cost_.recompute_ns += recompute_ns;
        }
        for (uint32_t i = 0; i < states_.size(); i++)
            if (states_[i].freed == place_) states_[i].here = false;
    }

    const ActivationTimeline& timeline_;
    const TrainingStep& step_;
    std::span<const Fate> fates_;
    const int64_t target_;
    std::vector<State> states_;
    std::vector<uint32_t> restores_;
    ActivationCost cost_;
    uint32_t place_ = 0;
    double now_ = 0, since_ = 0, to_host_ = 0, to_device_ = 0;
    int64_t others_ = 0;
    size_t started_ = 0;
};

}  // namespace stagehand::activations::test
