// StableVector: an array that grows without moving its elements, in huge pages if the system has them. References stay
// valid while other threads append. Random access to millions of elements needs few address translations.
#pragma once

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace stagehand {

template <class T>
class StableVector {
public:
    // Where the addresses of the process are limited, it takes few of them, because there may be many runtimes.
    StableVector() {
        size_t bytes = kMost * sizeof(T);
        rlimit addresses{};
        if (getrlimit(RLIMIT_AS, &addresses) == 0) bytes = std::min<size_t>(bytes, addresses.rlim_cur / 64);
        capacity_ = bytes / sizeof(T);
        reserved_ = (bytes + 2 * kStep - 1) / kStep * kStep;
        void* range = mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (range == MAP_FAILED) throw std::bad_alloc();
        range_ = static_cast<char*>(range);
        // Aligned to huge pages. The extra step in the reserved range makes room for that.
        data_ = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(range_) + kStep - 1) / kStep * kStep);
    }
    ~StableVector() {
        shrink(0);
        munmap(range_, reserved_);
    }
    StableVector(const StableVector&) = delete;
    StableVector& operator=(const StableVector&) = delete;

    T* data() { return data_; }
    const T* data() const { return data_; }
    size_t size() const { return size_; }
    size_t capacity() const { return capacity_; }
    T& operator[](size_t index) { return data_[index]; }
    const T& operator[](size_t index) const { return data_[index]; }
    T& back() { return data_[size_ - 1]; }

    template <class... Arguments>
    T& emplace_back(Arguments&&... arguments) {
        if ((size_ + 1) * sizeof(T) > usable_) grow();
        T* element = new (data_ + size_) T(std::forward<Arguments>(arguments)...);
        size_++;
        return *element;
    }

    void shrink(size_t size) {
        while (size_ > size) data_[--size_].~T();
    }

private:
    static constexpr size_t kMost = size_t(1) << 24, kStep = 2 << 20;

    void grow() {
        char* const end = reinterpret_cast<char*>(data_) + usable_;
        if (size_ == capacity_ || mprotect(end, kStep, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
        madvise(end, kStep, MADV_HUGEPAGE);
        usable_ += kStep;
    }

    char* range_ = nullptr;
    T* data_ = nullptr;
    size_t capacity_ = 0, reserved_ = 0, usable_ = 0, size_ = 0;
};

}  // namespace stagehand
