// UseRates: how likely a group's next call uses each of its members, as learned from the calls so far.
//
// A group is a layer of a mixture of experts, and its members are the experts. Each group is called once a step. Some
// models choose the same experts over a whole text, some choose anew for each topic, and in some a token keeps many
// experts of the token before. No single half-life serves all three. So each member has the rates of its uses over
// several half-lives, and its value is a weighted sum of them. The weights are those that would have predicted the
// latest calls best, by least squares. A value is thus a probability that can be compared with the one use a step of
// other blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stagehand::policy {

class UseRates {
public:
    // Members are numbered through: `width` of each group. Nothing else allocates.
    UseRates(uint32_t groups, uint32_t width);

    uint32_t groups() const { return groups_; }
    uint32_t width() const { return width_; }

    // The group's next call uses these members, all of the group. One that is named twice counts once.
    void count(uint32_t group, std::span<const uint32_t> members);
    // The group has not been called for long. Halves the values of its members.
    void pass(uint32_t group);

    // The expected uses a step, from 0 to 1, as of the group's latest call.
    double value(uint32_t member) const { return values_[member]; }

private:
    static constexpr size_t kRates = 3;
    // What the weights are for: the rates, and the part of its members that a group uses in a call.
    static constexpr size_t kTerms = kRates + 1;
    using Terms = std::array<double, kTerms>;

    Terms terms(uint32_t member) const;
    void mark(std::span<const uint32_t> members);
    void learn(uint32_t group);
    void find_weights();
    void age(uint32_t group, double use);
    void appraise(uint32_t group);

    uint32_t groups_, width_;
    std::array<std::vector<float>, kRates> rates_;  // by member
    std::vector<double> values_;                    // by member
    std::vector<uint64_t> calls_;                   // by group
    std::vector<uint8_t> used_;                     // by place in the group, in the call that is being counted
    uint32_t used_count_ = 0;
    uint32_t learned_ = 0;                  // calls since the weights were found
    double usual_count_ = 0;                // of members that a call uses, about the median; 0: no call yet
    std::array<Terms, kTerms> products_{};  // sums over the latest calls, of products of two terms
    Terms targets_{};                       // and of terms by whether the member was used
    Terms weights_;
};

}  // namespace stagehand::policy
