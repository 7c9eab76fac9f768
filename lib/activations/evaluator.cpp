#include "activations/evaluator.h"

#include <algorithm>
#include <limits>

namespace stagehand::activations {

// One pass over the events of a step.
class StepRun {
public:
    StepRun(ActivationEvaluator& evaluator, std::span<const Fate> fates, int64_t target_bytes,
            std::vector<MemoryChange>* changes)
        : all_(evaluator),
          timeline_(evaluator.timeline_),
          step_(evaluator.step_),
          fates_(fates),
          target_(target_bytes),
          changes_(changes) {}

    ActivationCost run() {
        for (uint32_t place = 0; place < timeline_.events.size(); place++) {
            const StepEvent& event = timeline_.events[place];
            now_ = std::max(now_, static_cast<double>(event.ns) + shift_);
            start_restores(place, now_);
            end_copies(now_);
            happen(event, place);
            shift_ = now_ - static_cast<double>(event.ns);
            steady_since_ = now_;
        }
        cost_.step_ns = static_cast<double>(step_.end_ns) + shift_;
        cost_.peak_bytes = static_cast<uint64_t>(peak_);
        return cost_;
    }

private:
    void happen(const StepEvent& event, uint32_t place) {
        const uint32_t i = event.index;
        switch (event.moment) {
            case StepMoment::others_change: {
                const int64_t now_others = static_cast<int64_t>(step_.others[i].bytes);
                take(now_others - others_);
                others_ = now_others;
                break;
            }
            case StepMoment::produced:
                produce(i);
                break;
            case StepMoment::released:
                all_.in_forward_[i] = 0;
                if (fates_[i] == Fate::recompute || (fates_[i] == Fate::spill && all_.copy_ended_[i]))
                    change(-bytes(i), now_);
                break;
            case StepMoment::first_use:
                use(i, place);
                break;
            case StepMoment::last_use:
            case StepMoment::late_last_use:
                if (all_.freed_by_[i] == all_.none) change(-bytes(i), now_);
                break;
            case StepMoment::forward_end:
                break;
        }
    }

    int64_t bytes(uint32_t storage) const { return timeline_.bytes[storage]; }

    void produce(uint32_t i) {
        const uint64_t size = static_cast<uint64_t>(bytes(i));
        if (fates_[i] == Fate::spill)
            while (in_flight_ > 0 && (size > step_.in_flight_bytes || in_flight_ > step_.in_flight_bytes - size))
                wait_for_copy();
        take(bytes(i));
        all_.in_forward_[i] = 1;
        if (fates_[i] != Fate::spill) return;
        in_flight_ += size;
        to_host_ = std::max(to_host_, now_) + copy_ns(size, step_.to_host);
        all_.copied_[i] = to_host_;
        all_.copies_.push_back(i);
        cost_.spilled_bytes += size;
    }

    double copy_ns(uint64_t size, const LinkRate& rate) const {
        return static_cast<double>(step_.copy_latency_ns) + static_cast<double>(size) / rate.left();
    }

    void use(uint32_t user, uint32_t place) {
        double recompute_ns = 0;
        for (uint32_t i = all_.first_needed_[user]; i != all_.none; i = all_.next_needed_[i]) {
            if (fates_[i] == Fate::spill) wait_for_restore();
            if (fates_[i] != Fate::recompute) continue;
            take(bytes(i));
            recompute_ns += static_cast<double>(step_.storages[i].recompute_ns);
            cost_.recomputed_bytes += static_cast<uint64_t>(bytes(i));
        }
        if (recompute_ns > 0) {
            steady_since_ = now_;
            start_restores(place + 1, now_ + recompute_ns);
            now_ += recompute_ns;
            end_copies(now_);
            cost_.recompute_ns += recompute_ns;
        }
        for (uint32_t i = all_.first_freed_[user]; i != all_.none; i = all_.next_freed_[i]) change(-bytes(i), now_);
    }

    // Takes memory, after waiting for as many copies as the target demands.
    void take(int64_t more) {
        while (more > 0 && memory_ + more > target_ && ended_ < all_.copies_.size()) wait_for_copy();
        change(more, now_);
    }

    void change(int64_t more, double at) {
        memory_ += more;
        peak_ = std::max(peak_, memory_);
        if (changes_) changes_->push_back({at, more});
    }

    void wait_for_copy() {
        now_ = std::max(now_, all_.copied_[all_.copies_[ended_]]);
        end_copies(now_);
    }

    // Frees the memory of all copies that have ended by then.
    void end_copies(double by) {
        for (; ended_ < all_.copies_.size() && all_.copied_[all_.copies_[ended_]] <= by; ended_++) {
            const uint32_t i = all_.copies_[ended_];
            all_.copy_ended_[i] = 1;
            in_flight_ -= static_cast<uint64_t>(bytes(i));
            if (!all_.in_forward_[i]) change(-bytes(i), all_.copied_[i]);
        }
    }

    // Starts the restores that can start by then, before the event at `place`.
    void start_restores(uint32_t place, double by) {
        while (started_ < all_.restores_.size() && all_.restore_places_[started_] < place && start_restore(by)) {
        }
    }

    // The next restore. Without memory for it under the target it starts only if nothing is left to wait for, and if
    // it must (`by` is infinite).
    bool start_restore(double by) {
        const bool must = by == std::numeric_limits<double>::infinity();
        const uint32_t i = all_.restores_[started_];
        double start = std::max({to_device_, steady_since_, all_.copied_[i]});
        if (start > by) return false;
        end_copies(start);
        while (memory_ + bytes(i) > target_) {
            if (ended_ == all_.copies_.size()) {
                if (!must) return false;
                break;
            }
            const double next = all_.copied_[all_.copies_[ended_]];
            if (next > by) return false;
            start = std::max(start, next);
            end_copies(start);
        }
        change(bytes(i), start);
        to_device_ = start + copy_ns(static_cast<uint64_t>(bytes(i)), step_.to_device);
        all_.restore_ends_[started_++] = to_device_;
        return true;
    }

    void wait_for_restore() {
        while (started_ <= used_) start_restore(std::numeric_limits<double>::infinity());
        now_ = std::max(now_, all_.restore_ends_[used_++]);
        end_copies(now_);
    }

    ActivationEvaluator& all_;
    const ActivationTimeline& timeline_;
    const TrainingStep& step_;
    std::span<const Fate> fates_;
    const int64_t target_;
    std::vector<MemoryChange>* const changes_;

    ActivationCost cost_;
    double now_ = 0;
    double shift_ = 0;         // of the events, against their recorded times
    double steady_since_ = 0;  // since then, only copies have changed the memory
    double to_host_ = 0;       // the end of the last copy in this direction
    double to_device_ = 0;
    int64_t memory_ = 0, peak_ = 0, others_ = 0;
    uint64_t in_flight_ = 0;  // bytes on the way to the host
    size_t ended_ = 0;        // copies to the host
    size_t started_ = 0;      // restores
    size_t used_ = 0;         // restores that a use has waited for
};

ActivationEvaluator::ActivationEvaluator(const ActivationTimeline& timeline)
    : timeline_(timeline),
      step_(*timeline.step),
      need_of_(timeline.storages()),
      freed_by_(timeline.storages()),
      first_needed_(timeline.storages()),
      next_needed_(timeline.storages()),
      first_freed_(timeline.storages()),
      next_freed_(timeline.storages()),
      copied_(timeline.storages()),
      copy_ended_(timeline.storages()),
      in_forward_(timeline.storages()) {
    for (const SavedStorage& storage : step_.storages) inputs_ += storage.inputs.size();
}

ActivationCost ActivationEvaluator::cost(std::span<const Fate> fates, uint64_t target_bytes,
                                         std::vector<MemoryChange>* changes) {
    const int64_t target = static_cast<int64_t>(std::min<uint64_t>(target_bytes, INT64_MAX / 2));
    effort_ += 3 * timeline_.events.size() + inputs_;
    find_needs(fates);
    find_levels(fates);
    find_restores(fates);
    find_restore_places(target);
    std::fill(copied_.begin(), copied_.end(), std::numeric_limits<double>::infinity());
    std::fill(copy_ended_.begin(), copy_ended_.end(), uint8_t{0});
    std::fill(in_forward_.begin(), in_forward_.end(), uint8_t{0});
    copies_.clear();
    restore_ends_.resize(restores_.size());
    return StepRun(*this, fates, target, changes).run();
}

std::span<const int64_t> ActivationEvaluator::settled_levels(std::span<const Fate> fates) {
    effort_ += timeline_.events.size() + inputs_;
    find_needs(fates);
    find_levels(fates);
    return levels_;
}

uint64_t ActivationEvaluator::settled_peak(std::span<const Fate> fates) {
    int64_t peak = 0;
    for (int64_t level : settled_levels(fates)) peak = std::max(peak, level);
    return static_cast<uint64_t>(peak);
}

uint64_t ActivationEvaluator::plain_peak() {
    return cost(std::vector<Fate>(timeline_.storages(), Fate::keep), UINT64_MAX).peak_bytes;
}

void ActivationEvaluator::find_needs(std::span<const Fate> fates) {
    std::fill(freed_by_.begin(), freed_by_.end(), none);
    std::fill(first_needed_.begin(), first_needed_.end(), none);
    std::fill(first_freed_.begin(), first_freed_.end(), none);
    for (uint32_t i = 0; i < need_of_.size(); i++) need_of_[i] = i;
    for (uint32_t i : timeline_.consumers_first) {
        const uint32_t user = need_of_[i], place = timeline_.first_use[user];
        next_needed_[i] = first_needed_[user];
        first_needed_[user] = i;
        if (freed_by_[i] != none) {
            next_freed_[i] = first_freed_[freed_by_[i]];
            first_freed_[freed_by_[i]] = i;
        }
        if (fates[i] != Fate::recompute) continue;
        for (uint32_t input : step_.storages[i].inputs) {
            // As long as the forward uses the input, it is on the device anyway.
            if (place <= timeline_.released[input]) continue;
            if (place < need_place(input)) need_of_[input] = user;
            const uint32_t freed = freed_by_[input];
            if (place > (freed == none ? timeline_.last_use[input] : timeline_.first_use[freed]))
                freed_by_[input] = user;
        }
    }
}

void ActivationEvaluator::find_levels(std::span<const Fate> fates) {
    levels_.assign(timeline_.events.size() + 1, 0);
    for (uint32_t i = 0; i < need_of_.size(); i++) {
        const int64_t bytes = timeline_.bytes[i];
        levels_[timeline_.produced[i]] += bytes;
        if (fates[i] != Fate::keep) {
            levels_[timeline_.released[i]] -= bytes;
            levels_[need_place(i)] += bytes;
        }
        levels_[freed_by_[i] == none ? timeline_.last_use[i] : timeline_.first_use[freed_by_[i]] + 1] -= bytes;
    }
    int64_t level = 0, others = 0;
    for (uint32_t place = 0; place < timeline_.events.size(); place++) {
        const StepEvent& event = timeline_.events[place];
        if (event.moment == StepMoment::others_change) {
            const int64_t bytes = static_cast<int64_t>(step_.others[event.index].bytes);
            level += bytes - others;
            others = bytes;
        }
        level += levels_[place];
        levels_[place] = level;
    }
    levels_.pop_back();
}

void ActivationEvaluator::find_restores(std::span<const Fate> fates) {
    restores_.clear();
    for (const StepEvent& event : timeline_.events)
        if (event.moment == StepMoment::first_use)
            for (uint32_t i = first_needed_[event.index]; i != none; i = next_needed_[i])
                if (fates[i] == Fate::spill) restores_.push_back(i);
}

// A restore needs its bytes from its start to the use, beside those of all restores before it that were not used yet.
// So it starts after the last event at which (level - restored bytes that were used by then) exceeds the target less
// the bytes of all restores up to this one.
void ActivationEvaluator::find_restore_places(int64_t target_bytes) {
    restore_places_.resize(restores_.size());
    highest_.clear();
    int64_t asked = 0;  // bytes of the restores up to this one
    int64_t used = 0;   // bytes of those that were used by the event at `place`
    size_t used_count = 0;
    size_t ahead = 0;      // the first restore that may be unused when this one starts
    int64_t ahead_of = 0;  // bytes of the restores before that one
    const int64_t most_ahead = static_cast<int64_t>(std::min<uint64_t>(step_.ahead_bytes, INT64_MAX / 2));
    uint32_t place = timeline_.forward_end;
    for (size_t r = 0; r < restores_.size(); r++) {
        asked += timeline_.bytes[restores_[r]];
        for (const uint32_t need = need_place(restores_[r]); place < need; place++) {
            for (; used_count < restores_.size() && need_place(restores_[used_count]) <= place; used_count++)
                used += timeline_.bytes[restores_[used_count]];
            const int64_t level = levels_[place] - used;
            while (!highest_.empty() && highest_.back().second <= level) highest_.pop_back();
            highest_.emplace_back(place, level);
        }
        auto fits = std::partition_point(highest_.begin(), highest_.end(),
                                         [&](const auto& high) { return high.second > target_bytes - asked; });
        uint32_t start = fits == highest_.begin() ? timeline_.forward_end : std::prev(fits)->first + 1;
        for (; ahead < r && asked - ahead_of > most_ahead; ahead++) ahead_of += timeline_.bytes[restores_[ahead]];
        if (ahead > 0) start = std::max(start, need_place(restores_[ahead - 1]));
        restore_places_[r] = start;
    }
}

}  // namespace stagehand::activations
