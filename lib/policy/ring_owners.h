// RingOwners: the owner of each page of a ring, kept as runs. So the cost of a load depends on the number of owners,
// not of pages.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace stagehand::policy {

class RingOwners {
public:
    static constexpr uint32_t nobody = UINT32_MAX;

    void reset(uint32_t pages) {
        pages_ = pages;
        starts_.assign(pages / 64 + 1, 0);
        owner_.resize(pages);
        if (pages == 0) return;
        mark(0);
        owner_[0] = nobody;
    }

    // Calls visit(first, count, owner) for the runs of pages [offset, offset + count) modulo the ring, in this order.
    // `first` counts from `offset`. Neighbouring runs may have the same owner. `count` is at most the ring.
    template <typename Visit>
    void visit(uint32_t offset, uint32_t count, Visit&& visit) const {
        uint32_t before_wrap = count < pages_ - offset ? count : pages_ - offset;
        visit_flat(offset, offset + before_wrap, 0, visit);
        if (before_wrap < count) visit_flat(0, count - before_wrap, before_wrap, visit);
    }

    // Makes `owner` own pages [offset, offset + count) modulo the ring.
    void take(uint32_t offset, uint32_t count, uint32_t owner) {
        uint32_t before_wrap = count < pages_ - offset ? count : pages_ - offset;
        if (before_wrap) take_flat(offset, offset + before_wrap, owner);
        if (before_wrap < count) take_flat(0, count - before_wrap, owner);
    }

private:
    bool is_start(uint32_t page) const { return starts_[page / 64] >> (page % 64) & 1; }
    void mark(uint32_t page) { starts_[page / 64] |= uint64_t{1} << (page % 64); }

    // The start of the run that contains `page`.
    uint32_t run_of(uint32_t page) const {
        uint32_t word = page / 64;
        uint64_t bits = starts_[word] & (~uint64_t{0} >> (63 - page % 64));
        while (bits == 0) bits = starts_[--word];  // page 0 is always a start
        return word * 64 + 63 - static_cast<uint32_t>(std::countl_zero(bits));
    }

    // The first start after `page`, but at most `end`.
    uint32_t next_start(uint32_t page, uint32_t end) const {
        uint32_t from = page + 1;
        if (from >= end) return end;
        uint32_t word = from / 64;
        uint64_t bits = starts_[word] & (~uint64_t{0} << (from % 64));
        while (bits == 0) {
            if (++word * 64 >= end) return end;
            bits = starts_[word];
        }
        uint32_t found = word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
        return found < end ? found : end;
    }

    template <typename Visit>
    void visit_flat(uint32_t begin, uint32_t end, uint32_t first, Visit&& visit) const {
        for (uint32_t page = begin; page < end;) {
            uint32_t next = next_start(page, end);
            visit(first + (page - begin), next - page, owner_[page == begin ? run_of(page) : page]);
            page = next;
        }
    }

    void take_flat(uint32_t begin, uint32_t end, uint32_t owner) {
        if (end < pages_ && !is_start(end)) {
            owner_[end] = owner_[run_of(end)];
            mark(end);
        }
        mark(begin);
        owner_[begin] = owner;
        clear(begin + 1, end);
    }

    void clear(uint32_t begin, uint32_t end) {
        while (begin < end) {
            uint32_t in_word = begin % 64;
            uint32_t bits = 64 - in_word < end - begin ? 64 - in_word : end - begin;
            uint64_t mask = (bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1) << in_word;
            starts_[begin / 64] &= ~mask;
            begin += bits;
        }
    }

    uint32_t pages_ = 0;
    std::vector<uint64_t> starts_;  // bit p: a run starts at page p
    std::vector<uint32_t> owner_;   // valid at the starts of runs
};

}  // namespace stagehand::policy
