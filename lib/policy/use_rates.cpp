#include "policy/use_rates.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace stagehand::policy {
namespace {

// Half-lives of the rates, in calls of the group. The first rate is whether the latest call used the member. On the
// traces of experts_bench, a single half-life of 16, 64 or 256 misses 1.5 to 2.2 times as often at worst, the two rates
// 0 and 64 miss 14 % more at worst, and a fourth rate saves 1 % at most.
constexpr std::array<double, 3> kUseHalfLives{0, 16, 256};
// Half-life of what the weights are learned from, in calls of each group. A shorter one follows a change of topic
// sooner. From 2 to 16 the misses differ by 2 %.
constexpr double kLearnedHalfLife = 8;
// So many members of a call are enough to learn from, and take less time than all.
constexpr uint32_t kLearnedPlaces = 32;
// The weights before any call, and how many uses it takes to change them.
constexpr double kFirstWeight = 0.25, kFirstUses = 0.001;
// No member is worth nothing. This also bounds the time to the next use.
constexpr double kLeastValue = 1e-4;
// A call moves the usual number of used members by this part. A call with far more members, as for a prompt, is not
// what the next calls are like.
constexpr double kUsualStep = 0.005;
constexpr double kFarMore = 2;

double least_share(size_t rate) { return kUseHalfLives[rate] > 0 ? 1 - std::exp2(-1 / kUseHalfLives[rate]) : 1; }

}  // namespace

UseRates::UseRates(uint32_t groups, uint32_t width)
    : groups_(groups), width_(width), values_(size_t{groups} * width, kLeastValue), calls_(groups), used_(width) {
    static_assert(kUseHalfLives.size() == kRates);
    for (auto& rates : rates_) rates.resize(values_.size());
    weights_.fill(kFirstWeight);
    for (size_t i = 0; i < kTerms; i++) {
        products_[i][i] = kFirstUses;
        targets_[i] = kFirstUses * kFirstWeight;
    }
}

void UseRates::count(uint32_t group, std::span<const uint32_t> members) {
    mark(members);
    if (used_count_ == 0) return pass(group);
    const double count = used_count_;
    if (usual_count_ == 0) usual_count_ = count;
    usual_count_ *= count > usual_count_ ? 1 + kUsualStep : 1 - kUsualStep;
    // All members alike, until the group's first call has told them apart.
    if (calls_[group] == 0)
        for (auto& rates : rates_)
            std::fill_n(rates.begin() + size_t{group} * width_, width_, static_cast<float>(usual_count_ / width_));
    else if (count <= kFarMore * usual_count_)
        learn(group);
    // A call that uses almost all members says little about each.
    age(group, std::min(1.0, usual_count_ / count));
    appraise(group);
}

void UseRates::pass(uint32_t group) {
    mark({});
    age(group, 0);
    for (uint32_t place = 0; place < width_; place++) {
        double& value = values_[size_t{group} * width_ + place];
        value = std::max(kLeastValue, value / 2);
    }
}

void UseRates::mark(std::span<const uint32_t> members) {
    std::fill(used_.begin(), used_.end(), uint8_t{0});
    used_count_ = 0;
    for (const uint32_t member : members) {
        uint8_t& used = used_[member % width_];
        used_count_ += !used;
        used = 1;
    }
}

UseRates::Terms UseRates::terms(uint32_t member) const {
    Terms terms;
    for (size_t i = 0; i < kRates; i++) terms[i] = rates_[i][member];
    terms[kRates] = usual_count_ / width_;
    return terms;
}

// Compares the rates before this call with its uses.
void UseRates::learn(uint32_t group) {
    const uint32_t stride = std::max(1u, width_ / kLearnedPlaces);
    for (uint32_t place = calls_[group] % stride; place < width_; place += stride) {
        const Terms term = terms(group * width_ + place);
        for (size_t i = 0; i < kTerms; i++) {
            for (size_t j = 0; j < kTerms; j++) products_[i][j] += term[i] * term[j];
            if (used_[place]) targets_[i] += term[i];
        }
    }
    if (++learned_ < groups_) return;
    learned_ = 0;
    find_weights();
    const double kept = std::exp2(-1 / kLearnedHalfLife);
    for (size_t i = 0; i < kTerms; i++) {
        for (double& product : products_[i]) product *= kept;
        targets_[i] *= kept;
    }
}

// Solves the normal equations. The matrix is positive definite with a little more on its diagonal, so no pivots are
// searched for.
void UseRates::find_weights() {
    auto rows = products_;
    Terms right = targets_;
    for (size_t i = 0; i < kTerms; i++) rows[i][i] += kFirstUses;
    for (size_t i = 0; i < kTerms; i++)
        for (size_t j = i + 1; j < kTerms; j++) {
            const double factor = rows[j][i] / rows[i][i];
            for (size_t k = i; k < kTerms; k++) rows[j][k] -= factor * rows[i][k];
            right[j] -= factor * right[i];
        }
    for (size_t i = kTerms; i-- > 0;) {
        for (size_t k = i + 1; k < kTerms; k++) right[i] -= rows[i][k] * right[k];
        right[i] /= rows[i][i];
    }
    if (std::all_of(right.begin(), right.end(), [](double weight) { return std::isfinite(weight); })) weights_ = right;
}

// `use`: how much a use in this call counts.
void UseRates::age(uint32_t group, double use) {
    const uint64_t calls = ++calls_[group];
    const uint32_t first = group * width_;
    for (size_t i = 0; i < kRates; i++) {
        // The first calls of all count alike.
        const double share = std::max(least_share(i), 1 / static_cast<double>(calls + 1));
        for (uint32_t place = 0; place < width_; place++) {
            float& rate = rates_[i][first + place];
            rate += static_cast<float>(share * ((used_[place] ? use : 0) - rate));
        }
    }
}

// The weights were learned from groups that are called, so pass() has no use for them.
void UseRates::appraise(uint32_t group) {
    const uint32_t first = group * width_;
    for (uint32_t member = first; member < first + width_; member++) {
        const Terms term = terms(member);
        const double value = std::inner_product(term.begin(), term.end(), weights_.begin(), 0.0);
        values_[member] = std::clamp(value, kLeastValue, 1.0);
    }
}

}  // namespace stagehand::policy
