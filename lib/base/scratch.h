// Scratch: a vector for the length of a call. The thread keeps its memory for the next call, so that a steady state
// allocates nothing.
#pragma once

#include <utility>
#include <vector>

namespace stagehand {

template <class T>
class Scratch {
public:
    Scratch() : vector_(std::exchange(kept_, {})) { vector_.clear(); }
    // A nested call has a vector of its own. The larger of the two vectors is kept.
    ~Scratch() {
        if (vector_.capacity() > kept_.capacity()) kept_ = std::move(vector_);
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    std::vector<T>& operator*() { return vector_; }
    std::vector<T>* operator->() { return &vector_; }

private:
    static inline thread_local std::vector<T> kept_;
    std::vector<T> vector_;
};

}  // namespace stagehand
