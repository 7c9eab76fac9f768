// Calls of a mixture of experts, and what other policies miss of them: LRU, LFU, Landlord, and Belady's, which knows
// what comes. For the tests of MemberCache and its benchmark.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "policy/landlord.h"
#include "policy/member_cache.h"

namespace stagehand::policy::test {

struct MixtureShape {
    uint32_t groups = 0, width = 0, used = 0;
    uint32_t members() const { return groups * width; }
};

enum class Routing {
    uniform,
    zipf,         // each group has its favourites, for ever
    sticky,       // a token keeps each expert of the token before with a probability
    sticky_zipf,  // and chooses the others by Zipf
    topics,       // the favourites change at times
    prompts,      // sticky_zipf, and at times a step has many tokens
};
constexpr Routing kRoutings[] = {Routing::uniform,     Routing::zipf,   Routing::sticky,
                                 Routing::sticky_zipf, Routing::topics, Routing::prompts};
constexpr const char* name(Routing routing) {
    constexpr const char* names[] = {"uniform", "Zipf", "sticky", "sticky, Zipf", "topics", "prompts"};
    return names[static_cast<size_t>(routing)];
}

// Call c is of the group c % groups.
struct Calls {
    MixtureShape shape;
    std::vector<std::vector<uint32_t>> used;
    size_t steps() const { return used.size() / shape.groups; }
};

class Router {
public:
    Router(Routing routing, MixtureShape shape, uint32_t seed)
        : routing_(routing), shape_(shape), random_(seed), weights_(shape.members(), 1), before_(shape.groups) {
        change_topic();
    }

    Calls calls(uint32_t steps) {
        Calls calls{shape_, {}};
        for (uint32_t step = 0; step < steps; step++) {
            if (routing_ == Routing::topics && step % kTopicSteps == kTopicSteps - 1) change_topic();
            const bool prompt = routing_ == Routing::prompts && step % kPromptSteps == kPromptSteps - 1;
            for (uint32_t group = 0; group < shape_.groups; group++) {
                std::set<uint32_t> all;
                for (uint32_t k = 0; k < (prompt ? kPromptTokens : 1); k++) {
                    before_[group] = token(group);
                    all.insert(before_[group].begin(), before_[group].end());
                }
                calls.used.emplace_back(all.begin(), all.end());
            }
        }
        return calls;
    }

private:
    static constexpr uint32_t kTopicSteps = 100, kPromptSteps = 40, kPromptTokens = 32;

    bool is_zipf() const { return routing_ != Routing::uniform && routing_ != Routing::sticky; }
    double kept() const {
        if (routing_ == Routing::sticky) return 0.6;
        return routing_ == Routing::sticky_zipf || routing_ == Routing::prompts ? 0.3 : 0;
    }

    void change_topic() {
        if (!is_zipf()) return;
        for (uint32_t group = 0; group < shape_.groups; group++) {
            const auto first = weights_.begin() + group * shape_.width;
            for (uint32_t k = 0; k < shape_.width; k++) first[k] = 1.0 / (k + 1);
            std::shuffle(first, first + shape_.width, random_);
        }
    }

    // Members of a group without repetition, by their weights: those with the least of exponential times.
    std::vector<uint32_t> token(uint32_t group) {
        std::uniform_real_distribution<double> unit(std::numeric_limits<double>::min(), 1);
        std::vector<std::pair<double, uint32_t>> times(shape_.width);
        for (uint32_t k = 0; k < shape_.width; k++) {
            const uint32_t member = group * shape_.width + k;
            times[k] = {-std::log(unit(random_)) / weights_[member], member};
        }
        for (const uint32_t member : before_[group])
            if (unit(random_) < kept()) times[member % shape_.width].first = 0;
        std::nth_element(times.begin(), times.begin() + shape_.used, times.end());
        std::vector<uint32_t> chosen;
        for (uint32_t k = 0; k < shape_.used; k++) chosen.push_back(times[k].second);
        return chosen;
    }

    Routing routing_;
    MixtureShape shape_;
    std::mt19937_64 random_;
    std::vector<double> weights_;                // by member
    std::vector<std::vector<uint32_t>> before_;  // by group: the experts of the token before
};

// Evicts the member with the least rank. A use gives a member its rank.
class Rival {
public:
    using Rank = std::pair<double, double>;

    explicit Rival(const Calls& calls) : ranks_(calls.shape.members()), resident_(ranks_.size()) {}
    virtual ~Rival() = default;
    virtual void use(uint32_t member, uint64_t call) = 0;
    bool has(uint32_t member) const { return resident_[member]; }
    virtual void insert(uint32_t member) {
        resident_[member] = true;
        order_.insert({ranks_[member], member});
    }
    // The members of the call in hand stay.
    virtual void evict_one(std::span<const uint32_t> call) {
        auto victim = order_.begin();
        while (std::binary_search(call.begin(), call.end(), victim->second)) ++victim;
        resident_[victim->second] = false;
        order_.erase(victim);
    }

protected:
    const Rank& rank(uint32_t member) const { return ranks_[member]; }
    void set_rank(uint32_t member, Rank rank) {
        order_.erase({ranks_[member], member});
        ranks_[member] = rank;
        order_.insert({rank, member});
    }
    void set_resident(uint32_t member, bool resident) { resident_[member] = resident; }

private:
    std::vector<Rank> ranks_;
    std::vector<bool> resident_;
    std::set<std::pair<Rank, uint32_t>> order_;
};

class Lru : public Rival {
public:
    using Rival::Rival;
    void use(uint32_t member, uint64_t call) override { set_rank(member, {static_cast<double>(call), 0}); }
};

class Lfu : public Rival {
public:
    using Rival::Rival;
    void use(uint32_t member, uint64_t call) override {
        set_rank(member, {rank(member).first + 1, static_cast<double>(call)});
    }
};

class Belady : public Rival {
public:
    explicit Belady(const Calls& calls) : Rival(calls), next_(calls.used.size()) {
        std::vector<double> next(calls.shape.members(), std::numeric_limits<double>::infinity());
        for (size_t call = calls.used.size(); call-- > 0;)
            for (const uint32_t member : calls.used[call]) {
                next_[call].push_back({member, next[member]});
                next[member] = static_cast<double>(call);
            }
    }
    void use(uint32_t member, uint64_t call) override {
        for (const auto& [other, next] : next_[call])
            if (other == member) set_rank(member, {-next, 0});
    }

private:
    std::vector<std::vector<std::pair<uint32_t, double>>> next_;  // by call: its members and their next calls
};

// The library's own policy for blocks outside the order.
class LandlordRival : public Rival {
public:
    using Rival::Rival;
    void use(uint32_t member, uint64_t) override { landlord_.touch(member); }
    void insert(uint32_t member) override {
        set_resident(member, true);
        landlord_.insert(member, 1, 1);
    }
    void evict_one(std::span<const uint32_t> call) override {
        for (const uint32_t member : call) landlord_.hold(member);
        const auto victim = static_cast<uint32_t>(landlord_.victim().value());
        for (const uint32_t member : call) landlord_.release(member);
        landlord_.evict(victim);
        set_resident(victim, false);
    }

private:
    Landlord landlord_;
};

// Misses a step, of the steps after the first ones.
inline double misses_of(Rival& rival, const Calls& calls, uint32_t slots, size_t first_steps) {
    uint64_t misses = 0, used = 0;
    for (size_t call = 0; call < calls.used.size(); call++) {
        for (const uint32_t member : calls.used[call]) {
            if (rival.has(member)) {
                rival.use(member, call);
                continue;
            }
            misses += call >= first_steps * calls.shape.groups;
            if (used == slots)
                rival.evict_one(calls.used[call]);
            else
                used++;
            rival.insert(member);
            rival.use(member, call);
        }
    }
    return static_cast<double>(misses) / static_cast<double>(calls.steps() - first_steps);
}

inline double misses_of(MemberCache& cache, const Calls& calls, size_t first_steps) {
    uint64_t misses = 0;
    for (size_t call = 0; call < calls.used.size(); call++) {
        cache.begin_call(static_cast<uint32_t>(call % calls.shape.groups), calls.used[call]);
        for (const uint32_t member : calls.used[call]) {
            const bool hit = cache.use(member).value().hit;
            misses += !hit && call >= first_steps * calls.shape.groups;
        }
        for (const uint32_t member : calls.used[call]) cache.release(member);
    }
    return static_cast<double>(misses) / static_cast<double>(calls.steps() - first_steps);
}

}  // namespace stagehand::policy::test
