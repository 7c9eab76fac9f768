#include "policy/victims.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace stagehand::policy {

namespace {

// One holder's parts, which are given from the last used to the first used.
struct Candidate {
    size_t holder;
    double due_ns;   // of the next part to give
    size_t left;     // number of parts, including that one
    uint64_t spare;  // pages
};

class Merge {
public:
    Merge(std::span<const Holder> holders, std::vector<uint64_t>& given) : holders_(holders), given_(given) {}

    // Takes up to `pages` from the holders of this class. Returns the number that is missing.
    uint64_t take(uint64_t pages, Priority priority) {
        heap_.clear();
        for (size_t h = 0; h < holders_.size(); h++) {
            const Holder& holder = holders_[h];
            if (holder.priority != priority || holder.spare_pages == 0 || holder.parts.empty()) continue;
            heap_.push_back({h, due(holder, holder.parts.size()), holder.parts.size(), holder.spare_pages});
        }
        for (size_t k = heap_.size() / 2; k-- > 0;) sift_down(k);
        while (pages && !heap_.empty()) {
            Candidate& top = heap_.front();
            const Holder& holder = holders_[top.holder];
            const uint64_t taken = std::min({pages, top.spare, holder.parts[top.left - 1].pages});
            given_[top.holder] += taken;
            pages -= taken;
            top.spare -= taken;
            if (--top.left == 0 || top.spare == 0) {
                top = heap_.back();
                heap_.pop_back();
            } else {
                top.due_ns = due(holder, top.left);
            }
            if (pages) sift_down(0);
        }
        return pages;
    }

    uint64_t comparisons() const { return comparisons_; }

private:
    static double due(const Holder& holder, size_t left) {
        const uint64_t due_ns = holder.parts[left - 1].due_ns;
        if (std::isnan(holder.next_step_ns) || due_ns == std::numeric_limits<uint64_t>::max())
            return std::numeric_limits<double>::infinity();
        return holder.next_step_ns + static_cast<double>(due_ns);
    }

    bool goes_before(const Candidate& a, const Candidate& b) {
        comparisons_++;
        return a.due_ns != b.due_ns ? a.due_ns > b.due_ns : a.holder < b.holder;
    }

    void sift_down(size_t k) {
        while (2 * k + 1 < heap_.size()) {
            size_t child = 2 * k + 1;
            if (child + 1 < heap_.size() && goes_before(heap_[child + 1], heap_[child])) child++;
            if (!goes_before(heap_[child], heap_[k])) return;
            std::swap(heap_[child], heap_[k]);
            k = child;
        }
    }

    std::span<const Holder> holders_;
    std::vector<uint64_t>& given_;
    std::vector<Candidate> heap_;  // the candidate whose next part goes first is in front
    uint64_t comparisons_ = 0;
};

}  // namespace

std::vector<uint64_t> choose_victims(uint64_t pages, std::span<const Holder> holders, uint64_t* out_comparisons) {
    std::vector<uint64_t> given(holders.size());
    Merge merge(holders, given);
    for (Priority priority : {Priority::none, Priority::secondary}) pages = merge.take(pages, priority);
    if (out_comparisons) *out_comparisons = merge.comparisons();
    return given;
}

}  // namespace stagehand::policy
