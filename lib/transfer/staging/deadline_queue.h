// DeadlineQueue: the jobs that wait for a worker. The earliest deadline comes first, and among equal deadlines the
// oldest job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace stagehand::transfer {

// The base of the items of a queue. An item belongs to at most one queue at a time.
struct Deadline {
    static constexpr size_t kNotQueued = SIZE_MAX;
    uint64_t deadline_ns = 0;
    uint64_t sequence = 0;            // order of arrival
    size_t queue_index = kNotQueued;  // only the queue uses it
};

// A binary heap whose items know their index, so that any item can be moved or removed. T derives from Deadline. The
// queue allocates memory only if it holds more items than ever before.
template <typename T>
class DeadlineQueue {
public:
    void reserve(size_t count) { items_.reserve(count); }
    bool empty() const { return items_.empty(); }
    size_t size() const { return items_.size(); }
    T* front() const { return items_.front(); }
    static bool contains(const T& item) { return item.queue_index != Deadline::kNotQueued; }

    void push(T& item) {
        items_.push_back(&item);
        item.queue_index = items_.size() - 1;
        rise(item.queue_index);
    }

    void remove(T& item) {
        const size_t index = item.queue_index;
        item.queue_index = Deadline::kNotQueued;
        T* const last = items_.back();
        items_.pop_back();
        if (last == &item) return;
        put(index, last);
        rise(index);
        sink(last->queue_index);
    }

    template <typename Visit>
    void for_each(Visit visit) const {
        for (T* item : items_) visit(*item);
    }

    // Called after the deadline of the item has changed.
    void moved(T& item) {
        rise(item.queue_index);
        sink(item.queue_index);
    }

private:
    static bool before(const T* a, const T* b) {
        return a->deadline_ns != b->deadline_ns ? a->deadline_ns < b->deadline_ns : a->sequence < b->sequence;
    }
    void put(size_t index, T* item) {
        items_[index] = item;
        item->queue_index = index;
    }
    void exchange(size_t a, size_t b) {
        T* const item = items_[a];
        put(a, items_[b]);
        put(b, item);
    }
    void rise(size_t index) {
        for (; index > 0 && before(items_[index], items_[(index - 1) / 2]); index = (index - 1) / 2)
            exchange(index, (index - 1) / 2);
    }
    void sink(size_t index) {
        for (;;) {
            size_t least = index;
            for (size_t child = 2 * index + 1; child < items_.size() && child <= 2 * index + 2; child++)
                if (before(items_[child], items_[least])) least = child;
            if (least == index) return;
            exchange(index, least);
            index = least;
        }
    }

    std::vector<T*> items_;
};

}  // namespace stagehand::transfer
